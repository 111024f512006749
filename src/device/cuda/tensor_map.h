/* Tensor maps: what Hopper's copy engine knows of a matrix in memory whose boxes it brings to shared memory. */
#pragma once

#include "device/cuda/kernel.h"

#include <cuda.h>
#include <stdint.h>

enum { TENSOR_MAP_DIMS = 5, TENSOR_MAP_INNER = 64 };

/* Of bf16 numbers, dim 0 innermost: it has TENSOR_MAP_INNER numbers, 128 bytes, or half as many, whose 16-byte chunks lie in shared memory
 * permuted by row (the 128-byte swizzle, or that of 64 bytes). data: a multiple of 16 bytes. strides: bytes from one index of dims 1, 2,
 * ... to the next, multiples of 16. box: what one copy brings of each dim; what lies outside is zeros. */
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
