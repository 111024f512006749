/* Kernels over rows: threads of a block, and the second stage of sums over rows. Both depend on shapes alone. */
#pragma once

#include "device/cuda/vec.cuh"
#include "ops/attrs.h"
#include "ops/gpu_sums.h"

/* Threads of a block for a row of `packs` 16-byte packs: whole warps, 32 to 1024 threads. */
static inline unsigned row_threads(int64_t packs)
{
    int64_t threads = cuda_div_up(packs, 32) * 32;
    return (unsigned)(threads > 1024 ? 1024 : threads < 32 ? 32 : threads);
}

/* out[c] (+)= sum over chunks of partial[chunk * stride + c]. A thread block takes 32 columns; its 8 warps share the chunks. */
static __global__ void combine_chunks(TensorView out, const float *partial, int64_t chunks, int64_t stride, int64_t cols, bool add)
{
    __shared__ float sums[8][33];
    int              lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t          c = (int64_t)blockIdx.x * 32 + lane;
    float            sum = 0;
    for (int64_t k = warp; k < chunks && c < cols; k += 8) sum += partial[k * stride + c];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp || c >= cols) return;
    sum = add ? elem_get(out.data, out.type.dtype, c) : 0;
    for (int w = 0; w < 8; w++) sum += sums[w][lane];
    elem_set(out.data, out.type.dtype, c, sum);
}

static inline void launch_combine(const KernelArgs *args, int out, const float *partial, int64_t chunks, int64_t stride, int64_t cols)
{
    combine_chunks<<<(unsigned)cuda_div_up(cols, 32), 256, 0, cuda_stream(args)>>>(args->out[out], partial, chunks, stride, cols,
                                                                                   args->accumulate >> out & 1);
}

/* exp(x), exact enough for T. */
template <typename T> static __device__ __forceinline__ float exp_for(float x)
{
    return sizeof(T) == sizeof(float) ? expf(x) : __expf(x);
}

/* cuda_div_up for kernels. */
static __device__ __forceinline__ int64_t cuda_div_up_device(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Whether all present views have dtype `dtype`. */
static inline bool views_are(DType dtype, const TensorView *const *views, int count)
{
    for (int i = 0; i < count; i++)
        if (views[i]->data && views[i]->type.dtype != dtype) return false;
    return true;
}
