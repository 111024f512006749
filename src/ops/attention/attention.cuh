/* What the CUDA attention kernels share: where heads lie, from types and views. */
#pragma once

#include "device/cuda/vec.cuh"
#include "ops/attrs.h"

/* Vectors of D elements: head h of token t of batch row b begins at element b * batch_stride + t * token_stride + h *
 * D. */
typedef struct Heads {
    void   *data;
    int64_t batch_stride, token_stride;
} Heads;

/* A code of a cache that is kept so. */
typedef uint8_t e4m3;

/* Of a cache: position p of row b lies in page table[b * row_pages + p / page_len], at p mod page_len. There are fewer than 2^31 cells. */
typedef struct CachePages {
    const int32_t *starts; /* (B) positions before the row's first query; NULL: there is no cache */
    const int32_t *table;  /* (B, row_pages) */
    int            row_pages, page_len, num_pages;
} CachePages;

typedef struct AttentionDims {
    int            batch, len, num_heads, num_kv_heads, dim, group;
    float          scale, softcap; /* softcap 0: none */
    int            window;         /* keys a query attends; INT_MAX: all before it */
    DType          dtype;          /* of q and all others but lse and a cache */
    DType          cached;         /* of k and v where they are a cache: dtype, or e4m3 */
    Heads          q, k, v, o;     /* k, v: the cache where there is one */
    float         *lse;            /* (B,H,T); NULL: not wanted */
    const int32_t *doc_start;      /* (B,T); NULL: 0 */
    CachePages     pages;          /* with a cache query t is key number starts[b] + t, else t; k and v have cells instead of tokens */
    /* backward */
    Heads        grad_o, dq, dk, dv; /* data NULL: not wanted */
    const float *dlse;               /* (B,H,T); NULL: 0 */
    const float *delta;              /* (B,H,T) sum over D of do o, less dlse */
} AttentionDims;

static inline AttentionDims attention_dims(const AttentionAttrs *attrs, const TensorType *q)
{
    AttentionDims a = {};
    a.batch = (int)q->dim[0], a.len = (int)q->dim[1];
    a.num_heads = (int)attrs->num_heads, a.num_kv_heads = (int)attrs->num_kv_heads, a.dim = (int)attrs->head_dim;
    a.group = a.num_heads / a.num_kv_heads;
    a.scale = attrs->scale != 0 ? (float)attrs->scale : 1.0f / sqrtf((float)a.dim);
    a.softcap = (float)attrs->softcap;
    a.window = attrs->window && attrs->window < INT_MAX ? (int)attrs->window : INT_MAX;
    a.dtype = q->dtype;
    return a;
}

/* A dense tensor (B,T,heads,D). */
static inline Heads heads_of(const TensorView *view)
{
    int64_t row = view->type.dim[2] * view->type.dim[3];
    Heads   h = {view->data, view->type.dim[1] * row, row};
    return h;
}

/* q, k, v of three views: the first packed, or each its own (data NULL: absent). */
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

/* The first key that query t attends, itself key number `own`. */
static __device__ __forceinline__ int attention_first_key(const AttentionDims &a, int b, int t, int own)
{
    int first = a.doc_start ? max(0, a.doc_start[b * a.len + t]) : 0;
    return max(first, own - a.window + 1);
}

/* Whether the row's new tokens have places. */
static __device__ __forceinline__ bool attention_has_room(const AttentionDims &a, int b)
{
    int start = a.pages.starts[b];
    return start >= 0 && start <= a.pages.row_pages * a.pages.page_len - a.len;
}

/* Where a position of row b lies, in positions from the cache's beginning. Page 0, which is nobody's, stands for pages that don't exist. */
static __device__ __forceinline__ int attention_cell(const CachePages &p, int b, int position)
{
    int page = p.table[(int64_t)b * p.row_pages + position / p.page_len];
    return ((unsigned)page < (unsigned)p.num_pages ? page : 0) * p.page_len + position % p.page_len;
}

/* Forward and backward for any head dim up to ATTENTION_MOST_DIM (attention_simt.cu, a compilation unit of its own).
 * The workspace of backward holds delta. */
enum { ATTENTION_MOST_DIM = 256 };
Status attention_simt_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_simt_backward(const AttentionDims *a, cudaStream_t stream);
/* delta[b,h,t] = sum over D of do o, less dlse. */
Status attention_delta(const AttentionDims *a, float *delta, cudaStream_t stream);

static inline size_t attention_delta_bytes(const AttentionDims *a)
{
    return ((size_t)a->batch * a->num_heads * a->len * sizeof(float) + 255) / 256 * 256;
}
