/* Decodes int8 codes on CUDA: a thread takes 8 side by side. Memory: 3 bytes an element in bf16. */
#pragma once

#include "device/cuda/vec.cuh"

enum { INT8_THREADS = 256 };

/* Loads 8 codes, the first in the lowest byte; codes from `count` on are 0. wide: all 8 exist, and the address is a multiple of 8. */
static __device__ __forceinline__ uint2 int8_load(const int8_t *codes, bool wide, int64_t count)
{
    uint64_t word = 0;
    if (wide) return *(const uint2 *)codes;
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (k < count) word |= (uint64_t)(uint8_t)codes[k] << (8 * k);
    return make_uint2((uint32_t)word, (uint32_t)(word >> 32));
}

/* scales NULL: 1. wide: rows of w are aligned to 16 bytes, rows of codes to 8. */
template <typename T>
static __global__ void __launch_bounds__(INT8_THREADS)
    int8_numbers(const int8_t *codes, const float *scales, T *w, int64_t rows, int64_t cols, bool wide)
{
    int64_t across = (cols + 7) / 8;
    for (int64_t i = (int64_t)blockIdx.x * INT8_THREADS + threadIdx.x; i < rows * across; i += (int64_t)gridDim.x * INT8_THREADS) {
        int64_t row = i / across, col = i % across * 8;
        uint2   word = int8_load(codes + row * cols + col, wide, cols - col);
        float   scale = scales ? scales[row] : 1, v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = (float)(int8_t)((k < 4 ? word.x : word.y) >> (k % 4 * 8)) * scale;
        store_eight(w + row * cols + col, v, wide, cols - col);
    }
}

/* Decodes into w (rows, cols) of dtype f32 or bf16. scales NULL: 1. */
static inline Status int8_decode(const int8_t *codes, const float *scales, void *w, DType dtype, int64_t rows, int64_t cols,
                                 cudaStream_t stream)
{
    bool     wide = cols % 8 == 0 && is_aligned16(w) && (uintptr_t)codes % 8 == 0;
    unsigned blocks = cuda_grid(rows * cuda_div_up(cols, 8), INT8_THREADS);
    CUDA_FLOAT(dtype, T, { int8_numbers<T><<<blocks, INT8_THREADS, 0, stream>>>(codes, scales, (T *)w, rows, cols, wide); });
    return CUDA_LAUNCHED();
}
