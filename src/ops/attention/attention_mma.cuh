/* Attention on the matrix units (attention_mma.cu, of heads of 256 attention_wide.cu): bf16, over a cache f16 too, rows of q, k, v that
 * begin at multiples of 16 bytes. */
#pragma once

#include "ops/attention/attention.cuh"

/* shared: bytes that a block may have. Tiles of 64 rows, padded, must fit in it. */
/* The kernels by matrix units take the largest product for the largest score, which a negative scale would turn around. */
static inline bool attention_mma_serves(const AttentionAttrs *attrs, size_t shared, bool backward)
{
    int64_t dim = attrs->head_dim, tiles = dim == 256 ? (backward ? 4 : 3) : backward ? 6 : 4;
    bool    any = dim == 64 || dim == 128 || dim == 256 || (!(attrs->softcap > 0) && (dim == 16 || dim == 32 || dim == 96));
    return any && attrs->scale >= 0 && shared >= (size_t)(tiles * 64 * (dim + 8) * 2 + 2048);
}

Status attention_mma_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_mma_backward(const AttentionDims *a, cudaStream_t stream); /* a->delta is there */
Status attention_wide_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_wide_backward(const AttentionDims *a, cudaStream_t stream);

/* What makes packed heads ready for attention (qkv_norm_rope). table NULL: they are. */
typedef struct HeadTurns {
    const void    *wq, *wk; /* of q's dtype; NULL: no norms */
    const float   *table;
    const int32_t *positions;
    int64_t        table_len;
    float          eps, offset;
} HeadTurns;

/* Over a cache in pages (attention_pages.cu), whose keys are there for prefill; decode has one token a row and puts its k and v there. With
 * turns, where attention_pages_turns, q, k and v are one packed row. early: starts, pages and all of turns are constant. */
Status attention_pages_prefill(const AttentionDims *a, cudaStream_t stream);
bool attention_pages_wgmma_serves(const AttentionDims *a); /* prefill by warpgroup products (attention_pages_wgmma.cu), of the same bits */
Status attention_pages_wgmma_prefill(const AttentionDims *a, cudaStream_t stream);
bool   attention_pages_turns(const AttentionDims *a);
Status attention_pages_decode(const AttentionDims *a, const Heads *k, const Heads *v, const HeadTurns *turns, bool early, void *workspace,
                              cudaStream_t stream);
Status attention_pages_prefill_f16(const AttentionDims *a, cudaStream_t stream); /* of f16 (attention_pages_f16.cu) */
Status attention_pages_decode_f16(const AttentionDims *a, const Heads *k, const Heads *v, const HeadTurns *turns, bool early,
                                  void *workspace, cudaStream_t stream);

/* The same by warpgroup products (attention_wgmma.cu): compute capability 9.0, no cache. */
static inline bool attention_wgmma_serves(const AttentionAttrs *attrs)
{
    int64_t dim = attrs->head_dim;
    return attrs->scale >= 0 && (dim == 128 || dim == 256 || (dim == 64 && !(attrs->softcap > 0)));
}
bool   attention_wgmma_there(void); /* whether this build has code for them */
Status attention_wgmma_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_wgmma_backward(const AttentionDims *a, cudaStream_t stream); /* heads of 256; a->delta is there */

/* The backward pass of heads of 64 and 128, delta included. */
Status attention_turns_backward(const AttentionDims *a, void *workspace, cudaStream_t stream);
