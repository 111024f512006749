/* Attention on the matrix units (attention_mma.cu): bf16, head dims below, rows of q, k, v that begin at multiples of
 * 16 bytes. */
#pragma once

#include "ops/attention.cuh"

static inline bool attention_mma_dim(int64_t dim)
{
    return dim == 16 || dim == 32 || dim == 64 || dim == 96 || dim == 128;
}

Status attention_mma_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_mma_backward(const AttentionDims *a, cudaStream_t stream); /* a->delta is there */

/* The same by warpgroup products (attention_wgmma.cu): compute capability 9.0, no cache, forward head dim 128, backward
 * these. */
static inline bool attention_wgmma_dim(int64_t dim)
{
    return dim == 64 || dim == 128;
}
bool   attention_wgmma_there(void); /* whether this build has code for them */
Status attention_wgmma_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_wgmma_backward(const AttentionDims *a, cudaStream_t stream);
