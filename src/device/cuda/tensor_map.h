/* Tensor maps: how Hopper's copy engine (TMA) finds boxes of a matrix in global memory, to load them to shared memory. */
#pragma once

#include "device/cuda/kernel.h"

#include <cuda.h>
#include <stdint.h>

enum { TENSOR_MAP_DIMS = 5, TENSOR_MAP_INNER = 64 };

/* A tensor of bf16 elements. Dim 0 is innermost, and a box has TENSOR_MAP_INNER elements of it (128 bytes) or half as many. In shared
 * memory its 16-byte chunks are permuted by row (128-byte or 64-byte swizzle). data: 16-byte aligned. strides: bytes from one index to
 * the next of dims 1, 2, ..., multiples of 16. box: elements that one copy loads along each dim; elements outside the tensor are zeros. */
typedef struct TensorMapShape {
    int      rank;
    uint64_t dims[TENSOR_MAP_DIMS], strides[TENSOR_MAP_DIMS - 1];
    uint32_t box[TENSOR_MAP_DIMS];
} TensorMapShape;

#ifdef __cplusplus
extern "C" {
#endif
NODISCARD Status cuda_tensor_map(const void *data, const TensorMapShape *shape, CUtensorMap *out);
#ifdef __cplusplus
}
#endif
