/* Attention on the matrix units (attention_mma.cu): bf16, head dims below, rows of q, k, v that begin at multiples of 16 bytes. */
#pragma once

#include "ops/attention.cuh"

enum { ATTENTION_MMA_SHARED = 6 * 64 * (128 + 8) * 2 }; /* most shared memory a block takes */

static inline bool attention_mma_dim(int64_t dim) { return dim == 16 || dim == 32 || dim == 64 || dim == 96 || dim == 128; }

Status attention_mma_forward(const AttentionDims *a, cudaStream_t stream);
Status attention_mma_backward(const AttentionDims *a, cudaStream_t stream); /* a->delta is there */
