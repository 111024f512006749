/* Attention on the matrix units (attention_mma.cu; heads of 256: attention_wide.cu): bf16, over a cache also f16. Rows of q, k, v must
 * begin at multiples of 16 bytes. */
#pragma once

#include "ops/attention/attention.cuh"
#include "ops/attention/attention_turns.h"

/* Whether attention_mma_* (heads of 256: attention_wide_*) serve. shared: bytes of shared memory that a thread block may have; tiles of 64
 * padded rows must fit. scale must not be negative: the kernels take the largest product for the largest score. */
static inline bool attention_mma_serves(const AttentionAttrs *attrs, size_t shared, bool backward)
{
    int64_t dim = attrs->head_dim, tiles = dim == 256 ? (backward ? 4 : 3) : backward ? 6 : 4;
    bool    any = dim == 64 || dim == 128 || dim == 256 || (!(attrs->softcap > 0) && (dim == 16 || dim == 32 || dim == 96));
    return any && attrs->scale >= 0 && shared >= (size_t)(tiles * 64 * (dim + 8) * 2 + 2560);
}

enum { ATTENTION_TILE_QUERIES = 64 }; /* queries that each part of a->bias_parts sums up in backward */

Status attention_mma_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_mma_backward(const AttentionDims *a, cudaStream_t stream); /* reads a->delta */
Status attention_wide_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_wide_backward(const AttentionDims *a, cudaStream_t stream);

/* Norms and rotation of packed heads before attention, as in qkv_norm_rope. table NULL: heads are ready, nothing is done. */
typedef struct HeadTurns {
    const void    *wq, *wk; /* weights of the norms, in q's dtype; NULL: no norms */
    const float   *table;
    const int32_t *positions;
    int64_t        table_len;
    float          eps, offset;
} HeadTurns;

/* Attention over a cache in pages (attention_pages.cu). Prefill expects the new keys and values in the cache already; decode has one token
 * a row, and writes its k and v into the cache. Decode may be given `turns` if attention_pages_turns(a); q, k and v are then one packed
 * row. early: starts, pages and all of turns are constant. */
Status attention_pages_prefill(const AttentionDims *a, cudaStream_t stream);
bool   attention_pages_wgmma_serves(const AttentionDims *a); /* prefill by warpgroup products (attention_pages_wgmma.cu): same bits */
Status attention_pages_wgmma_prefill(const AttentionDims *a, cudaStream_t stream);
bool   attention_pages_turns(const AttentionDims *a);
Status attention_pages_decode(const AttentionDims *a, const Heads *k, const Heads *v, const HeadTurns *turns, bool early, void *workspace,
                              cudaStream_t stream);
Status attention_pages_prefill_f16(const AttentionDims *a, cudaStream_t stream); /* prefill, decode for f16 (attention_pages_f16.cu) */
Status attention_pages_decode_f16(const AttentionDims *a, const Heads *k, const Heads *v, const HeadTurns *turns, bool early,
                                  void *workspace, cudaStream_t stream);

/* Attention without a cache by warpgroup products (attention_wgmma.cu), for compute capability 9.0. The node's inputs: `at` holds q, `more`
 * the sinks. Heads of 256 must be causal and have no bias; heads of 192 must have no bias. */
static inline bool attention_wgmma_serves(const Node *node, int at, int more)
{
    const AttentionAttrs *attrs = (const AttentionAttrs *)node->attrs;
    int64_t               dim = attrs->head_dim, v_dim = attention_dims_of(node, at).v_dim;
    bool                  causal = attention_is_causal(node, more), forms = dim <= 128 || (dim == 192 && !node->in[more + 1]);
    bool                  dims = attention_turns_dims(attrs, v_dim) || (dim == 256 && v_dim == 256);
    return dims && attrs->scale >= 0 && (causal || (forms && attention_has_form(node, more)));
}
bool   attention_wgmma_there(void); /* whether this build contains code for these kernels */
Status attention_wgmma_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_wgmma_backward(const AttentionDims *a, cudaStream_t stream); /* heads of 256; reads a->delta */

/* Backward for the other head dims; also computes delta, at the beginning of the workspace. */
Status attention_turns_backward(const AttentionDims *a, void *workspace, cudaStream_t stream);
