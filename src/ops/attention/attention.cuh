/* Shared by the CUDA attention kernels: the layout of heads in memory, taken from types and views. */
#pragma once

#include "device/cuda/vec.cuh"
#include "ops/attrs.h"

#include <cuda_fp16.h>

/* Vectors of D elements: head h of token t of batch row b begins at element b * batch_stride + t * token_stride + h *
 * D. */
typedef struct Heads {
    void   *data;
    int64_t batch_stride, token_stride;
} Heads;

/* f32, bf16 or f16. */
typedef struct Numbers {
    const void *data;
    DType       dtype;
} Numbers;

/* One code of a cache stored in e4m3. */
typedef uint8_t e4m3;

/* The page table of a cache: position p of row b is at slot p mod page_len of the page whose number is table[b * row_pages + p / page_len].
 * The cache has fewer than 2^31 positions. */
typedef struct CachePages {
    const int32_t *starts; /* (B) number of positions before the row's first query; NULL: there is no cache */
    const int32_t *table;  /* (B, row_pages) */
    int            row_pages, page_len, num_pages;
} CachePages;

enum {
    ATTENTION_MOST_DIM = 256,       /* largest head dim of the kernels on the vector units */
    ATTENTION_MOST_DISTANCES = 512, /* most rows of a bias that has a gradient */
};

typedef struct AttentionDims {
    int            batch, len, num_heads, num_kv_heads, dim, group;
    int            v_dim;          /* head dim of v and o; q and k have head dim `dim` */
    float          scale, softcap; /* softcap 0: none */
    int            window;         /* number of keys that a query attends; INT_MAX: all up to its own */
    bool           bidirectional;  /* a query also attends the keys after its own */
    DType          dtype;          /* dtype of all tensors except lse and a cache */
    DType          cached;         /* dtype of k and v if these are a cache: `dtype` or e4m3 */
    Heads          q, k, v, o;     /* with a cache, k and v are the cache */
    float         *lse;            /* output, (B,H,T); NULL: not wanted */
    const int32_t *doc_start;      /* first key of each query's document, (B,T); NULL: 0 */
    Numbers        sinks;          /* (H) one extra score per head, without a key; data NULL: none */
    Numbers        bias;           /* (R, H), see attention_bias_row; data NULL: none */
    int            bias_rows;
    CachePages     pages; /* with a cache: query t is key starts[b] + t, and cache positions index k and v; without one: query t is key t */
    /* only in backward: */
    Heads        grad_o, dq, dk, dv; /* dq, dk, dv: data NULL: not wanted */
    const float *dlse;               /* gradient of lse, (B,H,T); NULL: 0 */
    const float *delta;              /* (B,H,T) sum over E of do o, less dlse */
    float       *bias_parts;         /* (B,H,blocks of queries,R) partial sums of dbias; NULL: not wanted */
} AttentionDims;

/* v NULL, or its type without dims: q is packed (q, k, v in one row). */
static inline AttentionDims attention_dims(const AttentionAttrs *attrs, const TensorType *q, const TensorType *v)
{
    AttentionDims a = {};
    a.batch = (int)q->dim[0], a.len = (int)q->dim[1];
    a.num_heads = (int)attrs->num_heads, a.num_kv_heads = (int)attrs->num_kv_heads, a.dim = (int)attrs->head_dim;
    a.v_dim = v && v->ndim == 4 ? (int)v->dim[3] : a.dim;
    a.group = a.num_heads / a.num_kv_heads;
    a.scale = attrs->scale != 0 ? (float)attrs->scale : 1.0f / sqrtf((float)a.dim);
    a.softcap = (float)attrs->softcap;
    a.window = attrs->window && attrs->window < INT_MAX ? (int)attrs->window : INT_MAX;
    a.bidirectional = attrs->bidirectional;
    a.dtype = q->dtype;
    return a;
}

/* Dims for a node. at: the input that holds q; k and v are the next two. */
static inline AttentionDims attention_dims_of(const Node *node, int at)
{
    return attention_dims((const AttentionAttrs *)node->attrs, &node->in[at]->type, node->in[at + 2] ? &node->in[at + 2]->type : NULL);
}

/* Sets sinks and bias. views: [0] the sinks, [1] the bias. */
static inline void attention_bind_scores(AttentionDims *a, const TensorView *views)
{
    a->sinks.data = views[0].data, a->sinks.dtype = views[0].type.dtype;
    a->bias.data = views[1].data, a->bias.dtype = views[1].type.dtype;
    a->bias_rows = views[1].data ? (int)views[1].type.dim[0] : 0;
}

/* Whether keys and values have the same head dim. */
static inline bool attention_one_dim(const Node *node, int at)
{
    AttentionDims a = attention_dims_of(node, at);
    return a.v_dim == a.dim;
}

/* Whether no query attends later keys, and there is no bias. more: the input that holds the sinks; the next input is the bias. */
static inline bool attention_is_causal(const Node *node, int more)
{
    return !((const AttentionAttrs *)node->attrs)->bidirectional && !node->in[more + 1];
}

/* Whether the node has the form that every kernel on the matrix units serves: causal, without a bias, and with one head dim for keys and
 * values. */
static inline bool attention_is_plain(const Node *node, int at, int more)
{
    return attention_is_causal(node, more) && attention_one_dim(node, at);
}

/* Whether the kernels on the matrix units have code for the node's form: causal without a bias; or, if there is no softcap, bidirectional,
 * with a bias, or both. A bias is divided by the scale, which must not be near 0. */
static inline bool attention_has_form(const Node *node, int more)
{
    const AttentionAttrs *attrs = (const AttentionAttrs *)node->attrs;
    return attention_is_causal(node, more) || (!(attrs->softcap > 0) && attrs->scale > 1e-6f);
}

static inline bool attention_simt_serves(const Node *node, int at)
{
    AttentionDims a = attention_dims_of(node, at);
    return a.dim <= ATTENTION_MOST_DIM && a.v_dim <= ATTENTION_MOST_DIM;
}

/* The heads of a dense tensor (B,T,heads,D). */
static inline Heads heads_of(const TensorView *view)
{
    int64_t row = view->type.dim[2] * view->type.dim[3];
    Heads   h = {view->data, view->type.dim[1] * row, row};
    return h;
}

/* Finds q, k and v. views: [0] all three packed, or [0] q, [1] k, [2] v (data NULL: absent). */
static inline void heads_of_qkv(const AttentionDims *a, const TensorView *views, Heads *q, Heads *k, Heads *v)
{
    if (views[0].type.ndim == 4) {
        *q = heads_of(&views[0]);
        *k = heads_of(&views[1]);
        *v = heads_of(&views[2]);
        return;
    }
    int64_t row = (int64_t)(a->num_heads + 2 * a->num_kv_heads) * a->dim, size = dtype_bytes(views[0].type.dtype, 1);
    Heads   h = {views[0].data, a->len * row, row};
    *q = *k = *v = h;
    k->data = (char *)h.data + a->num_heads * a->dim * size;
    v->data = (char *)h.data + (a->num_heads + a->num_kv_heads) * a->dim * size;
}

/* The first key that query t attends; own: the key index of the query's own token. */
static __device__ __forceinline__ int attention_first_key(const AttentionDims &a, int b, int t, int own)
{
    int first = a.doc_start ? max(0, a.doc_start[b * a.len + t]) : 0;
    return max(first, own - a.window + 1);
}

/* Whether query t attends `key`; own: the key index of the query's own token. */
static __device__ __forceinline__ bool attention_attends(const AttentionDims &a, int b, int t, int own, int key)
{
    if (key <= own) return key >= attention_first_key(a, b, t, own);
    return a.bidirectional && key - own < a.window && (!a.doc_start || a.doc_start[b * a.len + key] <= t);
}

/* One past the last key that query t attends; own: the key index of the query's own token. */
static __device__ __forceinline__ int attention_after_key(const AttentionDims &a, int b, int t, int own)
{
    int least = t, after = a.len;
    if (!a.bidirectional) return own + 1;
    bool whole = !a.doc_start || a.doc_start[b * a.len + a.len - 1] <= t; /* the document is the row's last */
    while (!whole && after - least > 1) {
        int middle = (least + after) / 2;
        if (a.doc_start[b * a.len + middle] > t)
            after = middle;
        else
            least = middle;
    }
    return a.window < after - own ? own + a.window : after;
}

static __device__ __forceinline__ float attention_number(const Numbers &n, int64_t i)
{
    if (n.dtype == DT_F32) return ((const float *)n.data)[i];
    return n.dtype == DT_BF16 ? __bfloat162float(((const __nv_bfloat16 *)n.data)[i]) : __half2float(((const __half *)n.data)[i]);
}

/* The row of the bias table for a key `distance` tokens before the query's own key (negative: after it). Rows are distances 0, 1, ..;
 * bidirectional: -R / 2 to R / 2. Distances beyond the table use its first or last row. */
static __device__ __forceinline__ int attention_bias_row(const AttentionDims &a, int distance)
{
    return max(0, min(a.bias_rows - 1, a.bidirectional ? distance + a.bias_rows / 2 : distance));
}

static __device__ __forceinline__ float attention_bias(const AttentionDims &a, int head, int distance)
{
    return attention_number(a.bias, (int64_t)attention_bias_row(a, distance) * a.num_heads + head);
}

/* Whether the new tokens of row b fit into its pages. */
static __device__ __forceinline__ bool attention_has_room(const AttentionDims &a, int b)
{
    int start = a.pages.starts[b];
    return start >= 0 && start <= a.pages.row_pages * a.pages.page_len - a.len;
}

/* The index of a position of row b in the cache, counted in positions over all pages. Page 0, which belongs to no row, replaces page
 * numbers that don't exist. */
static __device__ __forceinline__ int attention_cell(const CachePages &p, int b, int position)
{
    int page = p.table[(int64_t)b * p.row_pages + position / p.page_len];
    return ((unsigned)page < (unsigned)p.num_pages ? page : 0) * p.page_len + position % p.page_len;
}

/* attention_simt_*: forward and backward for any head dim up to ATTENTION_MOST_DIM (attention_simt.cu, its own compilation unit). Backward
 * reads a->delta, which the caller computes into its workspace. */
Status attention_simt_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_simt_backward(const AttentionDims *a, cudaStream_t stream);
/* To be called after backward: compute dsinks (H) from a->delta, and dbias (R,H) from a->bias_parts. queries: how many queries each
 * part sums up. out data NULL: not wanted; adds: the gradient is added to `out`. */
Status attention_dsinks(const AttentionDims *a, const TensorView *out, bool adds, cudaStream_t stream);
Status attention_dbias(const AttentionDims *a, int queries, const TensorView *out, bool adds, cudaStream_t stream);
/* delta[b,h,t] = sum over E of do o, less dlse. */
Status attention_delta(const AttentionDims *a, float *delta, cudaStream_t stream);

static inline size_t attention_delta_bytes(const AttentionDims *a)
{
    return ((size_t)a->batch * a->num_heads * a->len * sizeof(float) + 255) / 256 * 256;
}

/* Bytes of a->bias_parts, for a bias of a->bias_rows rows. */
static inline size_t attention_parts_bytes(const AttentionDims *a)
{
    return (size_t)a->batch * a->num_heads * cuda_div_up(a->len, ATTENTION_BIAS_QUERIES) * a->bias_rows * sizeof(float);
}
