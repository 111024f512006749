/* fp8_own_scale on CUDA, in two launches: the first finds the largest magnitude of each part of x, the second makes the scale. */
#include "device/cuda/vec.cuh"
#include "ops/attrs.h"
#include "ops/lowbit/block_most.cuh"
#include "ops/lowbit/fp8.h"

enum { THREADS = 256 };

/* packs: whole packs of 16 bytes at the beginning of x; 0 if x isn't aligned. A thread block takes a part. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) largest_of_parts(const T *x, uint32_t *parts, int64_t packs, int64_t numel)
{
    enum { N = Pack<T>::N, PACKS = FP8_SCALE_PART / N };
    int64_t  first = (int64_t)blockIdx.x * PACKS, end = min(packs, first + PACKS);
    uint32_t most = 0;
#pragma unroll 4
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        float v[N];
        load_pack(x + i * N, v);
#pragma unroll
        for (int k = 0; k < N; k++) most = max(most, small_magnitude(v[k]));
    }
    int64_t begin = max(packs * N, (int64_t)blockIdx.x * FP8_SCALE_PART), stop = min(numel, (int64_t)(blockIdx.x + 1) * FP8_SCALE_PART);
    for (int64_t i = begin + threadIdx.x; i < stop; i += THREADS) most = max(most, small_magnitude(to_float(x[i])));
    most = block_most<THREADS>(most);
    if (threadIdx.x == 0) parts[blockIdx.x] = most;
}

static __global__ void __launch_bounds__(THREADS)
    scale_of_parts(const uint32_t *parts, int64_t count, float *scale, float limit, int64_t margin)
{
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) most = max(most, parts[i]);
    most = block_most<THREADS>(most);
    if (threadIdx.x == 0) fp8_scale_follow(scale, small_value(most), limit, margin);
}

static Status fp8_own_scale_run(const KernelArgs *args)
{
    const Fp8OwnScaleAttrs *attrs = (const Fp8OwnScaleAttrs *)args->attrs;
    const TensorView       *x = &args->in[0];
    int64_t                 numel = type_numel(&x->type), parts = cuda_div_up(numel, FP8_SCALE_PART);
    uint32_t               *most = (uint32_t *)args->workspace;
    float                  *scale = (float *)args->out[0].data;
    if (!scale) return OK;
    CUDA_FLOAT(x->type.dtype, T, {
        largest_of_parts<T><<<(unsigned)parts, THREADS, 0, cuda_stream(args)>>>((const T *)x->data, most,
                                                                                is_aligned16(x->data) ? numel / Pack<T>::N : 0, numel);
    });
    scale_of_parts<<<1, THREADS, 0, cuda_stream(args)>>>(most, parts, scale, fp8_most(fp8_dtype(attrs->dtype)), attrs->margin);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(fp8_own_scale, {.dtypes = DT_SET_FLOAT, .run = fp8_own_scale_run, .name = "parts", .workspace = cuda_planned_workspace})
