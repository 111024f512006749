/* Shared by the attention ops on the CPU: the layout of heads in memory, and the forward pass over blocks of keys. */
#pragma once

#include "ops/infer.h"

/* Vectors of D elements in f32, bf16 or f16; in a cache also e4m3. Head h of token t of batch row b begins at element
 * b * batch_stride + t * token_stride + h * D. */
typedef struct Heads {
    void   *data;
    DType   dtype;
    int64_t batch_stride, token_stride, dim;
    /* For a cache: batch row b uses the pages numbered pages[b * row_pages ..], each of page_len tokens and batch_stride elements. */
    const int32_t *pages; /* NULL: no pages, row b is contiguous */
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
    int64_t        batch, len;                          /* batch rows, queries of each */
    int64_t        num_heads, num_kv_heads, dim, group; /* group: query heads of one key/value head */
    int64_t        v_dim;                               /* head dim of v and o; q and k have head dim `dim` */
    int64_t        first;                               /* keys before the first query; of the longest row if rows differ */
    const int32_t *starts;                              /* (batch) keys before the first query of each row; NULL: none */
    int64_t        window;                              /* number of keys that a query attends, up to its own; 0: all */
    float          scale, softcap;                      /* softcap 0: none */
    bool           bidirectional;                       /* a query also attends the keys after its own */
    Heads          q, k, v, o;
    const int32_t *doc_start; /* (batch, len) first key of each query's document; NULL: 0 */
    float         *lse;       /* output, (batch, num_heads, len); NULL: not wanted */
    TensorView     sinks;     /* (num_heads) one extra score per head, without a key; data NULL: none */
    TensorView     bias;      /* (R, num_heads), see attention_bias_row; data NULL: none */
} Attention;

/* Keys of one block in the forward pass; blocks begin at multiples of this number. It is a whole number of tiles, and small enough that a
 * panel's scores stay in the L1 cache. */
enum { ATTENTION_BLOCK_K = 144 };

/* The key index of query t's own token. Without `bidirectional` it is the last key that the query attends. */
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

/* One past the last key that query t attends. doc_start never decreases along a row, so a document ends at the first token whose doc_start
 * is greater than t. */
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

/* The row of the bias table for a key `distance` tokens before the query's own key (negative: after it). Rows are distances 0, 1, ..;
 * bidirectional: -R / 2 to R / 2. Distances beyond the table use its first or last row. */
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

/* Checks that each query attends at least its own key. Backward relies on it: dk and dv of a key that no query attends would stay
 * unwritten. */
static inline Status attention_check_starts(const Attention *a)
{
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->len; t++)
            FAIL_IF(a->doc_start[b * a->len + t] > t, ERR_INVALID, "doc_start of row %lld, position %lld is %d, expected no later position",
                    (long long)b, (long long)t, a->doc_start[b * a->len + t]);
    return OK;
}

extern const AttrDef attention_attrs[]; /* attributes of attention and attention_cached */

/* Checks inputs `at` to `at` + 2 of a node: q (B,T,H,D), k (B,T,G,D), v (B,T,G,E), or packed (B,T,(H+2G)D) alone. Also checks inputs `more`
 * and `more` + 1, if present: sinks (H) and bias (R,H). */
NODISCARD Status attention_infer_qkv(const Node *node, int at, int more);

/* E, the head dim of values; it is D if q is packed. at: the input that holds q. */
int64_t attention_value_dim(const Node *node, int at);

/* Sets dims and scale. q: the type of q or of the packed rows; v: the type of v (NULL or no dims: q is packed). */
Attention attention_dims(const AttentionAttrs *attrs, const TensorType *q, const TensorType *v);

/* attention_dims for a node. at: the input that holds q; k and v are the next two. */
Attention attention_dims_of(const Node *node, int at);

/* Finds q, k and v. q: an array of views, [0] all three packed, or [0] q, [1] k, [2] v. */
void attention_bind_qkv(Attention *a, const TensorView *q, Heads *out_q, Heads *out_k, Heads *out_v);

/* The heads of a dense tensor (B,T,heads,D). */
Heads heads_of_view(const TensorView *view, int64_t dim);

/* The heads of a cache (N,S,heads,D), addressed through `pages` (B,P), each row's page numbers. */
Heads heads_of_pages(const TensorView *cache, const TensorView *pages, int64_t dim);

/* ERR_INVALID: `tokens` new tokens of a row don't fit into its pages. Reads types only, so it can run before any kernel. */
NODISCARD Status attention_check_room(const TensorType *cache, const TensorType *pages, int64_t tokens);

/* ERR_INVALID: new tokens of a row are outside its positions, or a page number is outside the cache. */
NODISCARD Status attention_check_places(const Attention *a, const TensorView *cache, const TensorView *pages);

/* Writes the rows of new tokens into the cache, converted to the cache's dtype. */
void attention_append(const Attention *a, const Heads *cache, const Heads *rows);

/* Counts the multiplications of q k^T, if every row is one document. If D and E differ: the mean of the counts of q k^T and of p v. */
double attention_macs(const Attention *a);

/* Rows [t, t + rows) of one head as f32, `*out_stride` floats apart: in place if possible, else converted into scratch (rows, D). */
const float *attention_rows(const Heads *heads, int64_t b, int64_t t, int64_t rows, int64_t h, float *scratch, int64_t *out_stride);

size_t attention_forward_workspace(const Attention *a, int num_workers);
void   attention_forward(const Attention *a, ThreadPool *pool, void *workspace);
void   attention_forward_reference(const Attention *a);
