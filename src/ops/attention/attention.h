/* What the attention ops share: where heads lie in memory, and the forward pass over blocks of keys. */
#pragma once

#include "ops/infer.h"

/* Vectors of D elements in f32, bf16 or f16, of a cache perhaps in e4m3: head h of token t of batch row b begins at element b *
 * batch_stride + t * token_stride + h * D. */
typedef struct Heads {
    void   *data;
    DType   dtype;
    int64_t batch_stride, token_stride, dim;
    /* Of a cache: tokens of batch row b lie in pages pages[b * row_pages ..] of page_len tokens each, a page being batch_stride elements.
     */
    const int32_t *pages; /* NULL: row b is one piece */
    int64_t        page_len, row_pages;
} Heads;

static inline int64_t heads_offset(const Heads *heads, int64_t b, int64_t t, int64_t h)
{
    if (heads->pages) {
        b = heads->pages[b * heads->row_pages + t / heads->page_len];
        t %= heads->page_len;
    }
    return b * heads->batch_stride + t * heads->token_stride + h * heads->dim;
}

static inline const void *heads_at(const Heads *heads, int64_t b, int64_t t, int64_t h)
{
    return (const char *)heads->data + dtype_bytes(heads->dtype, heads_offset(heads, b, t, h));
}

static inline void *heads_at_mut(const Heads *heads, int64_t b, int64_t t, int64_t h)
{
    return (char *)heads->data + dtype_bytes(heads->dtype, heads_offset(heads, b, t, h));
}

typedef struct Attention {
    int64_t        batch, len;                          /* of queries */
    int64_t        num_heads, num_kv_heads, dim, group; /* group: query heads of one key/value head */
    int64_t        v_dim;                               /* of values and o; the others have dim */
    int64_t        first;                               /* keys before the first query: of the longest row, where rows differ */
    const int32_t *starts;                              /* (batch) keys before the first query of each row; NULL: none */
    int64_t        window;                              /* the last keys up to its own that a query attends; 0: all */
    float          scale, softcap;                      /* softcap 0: none */
    bool           bidirectional;                       /* a query attends the keys after its own too */
    Heads          q, k, v, o;
    const int32_t *doc_start; /* (batch, len) first key of each query; NULL: 0 */
    float         *lse;       /* (batch, num_heads, len); NULL: not wanted */
    TensorView     sinks;     /* (num_heads) scores that each query has besides, of no key; data NULL: none */
    TensorView     bias;      /* (R, num_heads), see attention_bias_row; data NULL: none */
} Attention;

/* Keys that the forward pass takes at a time, counted from key 0: whole tiles, so that scores of a panel stay in the first cache. */
enum { ATTENTION_BLOCK_K = 144 };

/* The number of query t's own key, the last that it attends. */
static inline int64_t attention_own_key(const Attention *a, int64_t b, int64_t t)
{
    return (a->starts ? a->starts[b] : 0) + t;
}

/* The first key that query t attends. */
static inline int64_t attention_first_key(const Attention *a, int64_t b, int64_t t)
{
    int64_t first = a->doc_start ? max_i64(0, a->doc_start[b * a->len + t]) : 0;
    return a->window ? max_i64(first, attention_own_key(a, b, t) + 1 - a->window) : first;
}

/* The key behind the last one that query t attends. doc_start doesn't fall from one token to the next: a document ends where it is greater
 * than t. */
static inline int64_t attention_after_key(const Attention *a, int64_t b, int64_t t)
{
    int64_t own = attention_own_key(a, b, t), least = t, after = a->len;
    if (!a->bidirectional) return own + 1;
    while (a->doc_start && after - least > 1) {
        int64_t middle = (least + after) / 2;
        if (a->doc_start[b * a->len + middle] > t)
            after = middle;
        else
            least = middle;
    }
    return a->window ? min_i64(after, own + a->window) : after;
}

/* The row of the bias table for a key `distance` tokens before the query's own, negative: after it. Rows are distances 0, 1, ..;
 * bidirectional: -R / 2 to R / 2. The first and the last are of all beyond, too. */
static inline int64_t attention_bias_row(const Attention *a, int64_t distance)
{
    int64_t rows = a->bias.type.dim[0];
    return max_i64(0, min_i64(rows - 1, a->bidirectional ? distance + rows / 2 : distance));
}

static inline float attention_bias(const Attention *a, int64_t h, int64_t distance)
{
    return vec_get(a->bias.data, a->bias.type.dtype, attention_bias_row(a, distance) * a->num_heads + h);
}

static inline float attention_sink(const Attention *a, int64_t h)
{
    return vec_get(a->sinks.data, a->sinks.type.dtype, h);
}

/* Each query attends its own key at least. Backward relies on it: dk and dv of a key that no query attends would stay unwritten. */
static inline Status attention_check_starts(const Attention *a)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->len; t++)
            FAIL_IF(a->doc_start[b * a->len + t] > t, ERR_INVALID, "doc_start of row %lld, position %lld is %d, expected no later position",
                    (long long)b, (long long)t, a->doc_start[b * a->len + t]);
    return OK;
}

extern const AttrDef attention_attrs[]; /* of attention and attention_cached */

/* What large samples of all three add to shapes: windows that begin inside of tiles, in documents and in whole rows; caps; head dims. */
static const AttentionAttrs attention_large_attrs[] = {
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .window = 100},
    {.num_heads = 4, .num_kv_heads = 1, .head_dim = 128, .window = 64, .dense = true},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 128, .window = 300, .dense = true},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .softcap = 0.8},
    {.num_heads = 4, .num_kv_heads = 4, .head_dim = 128, .window = 129, .softcap = 0.8, .dense = true},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 256},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 256, .dense = true},
    {.num_heads = 3, .num_kv_heads = 1, .head_dim = 256, .window = 1, .dense = true},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 256, .scale = 0.1, .window = 130, .softcap = 0.8, .dense = true},
    {.num_heads = 2, .num_kv_heads = 2, .head_dim = 80, .window = 77, .softcap = 0.8, .dense = true},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 128, .scale = -0.3, .dense = true},
};

/* What small samples of all three add: sinks, a bias, values of another size, and keys after the query. */
static const AttentionAttrs attention_more_attrs[] = {
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .window = 3, .softcap = 0.7},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .bidirectional = true},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .window = 3, .softcap = 0.7, .bidirectional = true},
};

/* Of large ones: latent attention's heads of 192 and 128 (DeepSeek-V3), gpt-oss' heads and windows, T5's, an encoder's. */
static const AttentionAttrs attention_large_more[] = {
    {.num_heads = 2, .num_kv_heads = 2, .head_dim = 192},
    {.num_heads = 8, .num_kv_heads = 1, .head_dim = 64, .window = 128},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .scale = 1},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .bidirectional = true},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 128},
};

/* Inputs at, at+1, at+2 of a node: q (B,T,H,D), k (B,T,G,D), v (B,T,G,E), or packed (B,T,(H+2G)D) alone. Inputs more, more+1, where they
 * are there: sinks (H), bias (R,H). */
NODISCARD Status attention_infer_qkv(const Node *node, int at, int more);

/* E, the size of a value's head: D where q is packed. */
int64_t attention_value_dim(const Node *node, int at);

/* Dims and scale from the types of q or packed and of v (no dims: q is packed). */
Attention attention_dims(const AttentionAttrs *attrs, const TensorType *q, const TensorType *v);

/* The same, of inputs at, at+1, at+2 of a node. */
Attention attention_dims_of(const Node *node, int at);

/* q, k, v of three views: the first packed, or each its own. */
void attention_bind_qkv(Attention *a, const TensorView *q, Heads *out_q, Heads *out_k, Heads *out_v);

/* A dense tensor (B,T,heads,D). */
Heads heads_of_view(const TensorView *view, int64_t dim);

/* A cache (N,S,heads,D) by the pages (B,P) of each row. */
Heads heads_of_pages(const TensorView *cache, const TensorView *pages, int64_t dim);

/* ERR_INVALID: so many new tokens of a row don't fit into its pages; by types, before anything runs. */
NODISCARD Status attention_check_room(const TensorType *cache, const TensorType *pages, int64_t tokens);

/* ERR_INVALID: a row's new tokens lie outside its positions, or one of its pages outside the cache. */
NODISCARD Status attention_check_places(const Attention *a, const TensorView *cache, const TensorView *pages);

/* Writes the new tokens' rows into the cache, in its dtype. */
void attention_append(const Attention *a, const Heads *cache, const Heads *rows);

/* Multiplications of q k^T where rows are single documents; the mean of those and of p v where their dims differ. */
double attention_macs(const Attention *a);

/* Rows [t, t + rows) of one head as f32, converted into scratch (rows, D) where they aren't. */
const float *attention_rows(const Heads *heads, int64_t b, int64_t t, int64_t rows, int64_t h, float *scratch, int64_t *out_stride);

size_t attention_forward_workspace(const Attention *a, int num_workers);
void   attention_forward(const Attention *a, ThreadPool *pool, void *workspace);
void   attention_forward_reference(const Attention *a);
