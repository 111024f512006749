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
    int64_t        first;                               /* keys before the first query: of the longest row, where rows differ */
    const int32_t *starts;                              /* (batch) keys before the first query of each row; NULL: none */
    int64_t        window;                              /* the last keys up to its own that a query attends; 0: all */
    float          scale, softcap;                      /* softcap 0: none */
    Heads          q, k, v, o;
    const int32_t *doc_start; /* (batch, len) first key of each query; NULL: 0 */
    float         *lse;       /* (batch, num_heads, len); NULL: not wanted */
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

/* Each query attends its own key at least. Backward relies on it: dk and dv of a key that no query attends would stay unwritten. */
static inline Status attention_check_starts(const Attention *a)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->len; t++)
            FAIL_IF(a->doc_start[b * a->len + t] > t, ERR_INVALID, "doc_start of row %lld, position %lld is %d, expected no later position",
                    (long long)b, (long long)t, a->doc_start[b * a->len + t]);
    return OK;
}

extern const AttrDef attention_attrs[]; /* of all three */

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

/* Inputs at, at+1, at+2 of a node: q (B,T,H,D), k, v (B,T,G,D), or packed (B,T,(H+2G)D) alone. */
NODISCARD Status attention_infer_qkv(const Node *node, int at);

/* Dims and scale from the type of q or packed. */
Attention attention_dims(const AttentionAttrs *attrs, const TensorType *q);

/* q, k, v of three views: the first packed, or each its own. */
void attention_bind_qkv(Attention *a, const TensorView *q, Heads *out_q, Heads *out_k, Heads *out_v);

/* A dense tensor (B,T,heads,D). */
Heads heads_of_view(const TensorView *view, int64_t dim);

/* Multiplications of q k^T where rows are single documents. */
double attention_macs(const Attention *a);

/* Rows [t, t + rows) of one head as f32, converted into scratch (rows, D) where they aren't. */
const float *attention_rows(const Heads *heads, int64_t b, int64_t t, int64_t rows, int64_t h, float *scratch, int64_t *out_stride);

size_t attention_forward_workspace(const Attention *a, int num_workers);
void   attention_forward(const Attention *a, ThreadPool *pool, void *workspace);
void   attention_forward_reference(const Attention *a);
