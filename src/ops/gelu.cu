/* gelu and gelu_bwd on CUDA, 16 bytes a thread and turn. */
#include "ops/gelu.h"
#include "ops/rows.cuh"

enum { THREADS = 256 };

/* gelu(x) and its slope. TANH: by the approximation. */
template <bool TANH> static __device__ __forceinline__ float gelu_of(float x, float *slope)
{
    if (TANH) {
        float s = 1.0f / (1.0f + expf(-1.5957691216f * (x + 0.044715f * (x * x * x))));
        *slope = s + x * s * (1.0f - s) * (1.5957691216f * (1.0f + 0.134145f * (x * x)));
        return x * s;
    }
    float below = normcdff(x);
    *slope = below + 0.3989422804f * x * expf(-0.5f * x * x);
    return x * below;
}

/* y = gelu(x), with dy y = dy slope(x): the compiler drops what isn't asked for. y may be dy's or x's memory. */
template <bool TANH, bool BWD> static __device__ __forceinline__ float gelu_result(float dy, float x)
{
    float slope, y = gelu_of<TANH>(x, &slope);
    return BWD ? dy * slope : y;
}

template <typename T, bool TANH, bool BWD> static __global__ void gelu_packs(const T *dy, const T *x, T *y, int64_t packs)
{
    enum { N = Pack<T>::N };
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < packs; i += (int64_t)gridDim.x * THREADS) {
        float d[N] = {}, v[N];
        if (BWD) load_pack(dy + i * N, d);
        load_pack(x + i * N, v);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = gelu_result<TANH, BWD>(d[k], v[k]);
        store_pack(y + i * N, v);
    }
}

template <bool TANH, bool BWD> static __global__ void gelu_elements(TensorView dy, TensorView x, TensorView y, int64_t begin, int64_t count)
{
    for (int64_t i = begin + (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        float d = BWD ? elem_get(dy.data, dy.type.dtype, i) : 0;
        elem_set(y.data, y.type.dtype, i, gelu_result<TANH, BWD>(d, elem_get(x.data, x.type.dtype, i)));
    }
}

template <bool TANH, bool BWD> static Status gelu_launch(const KernelArgs *args)
{
    const TensorView *dy = &args->in[0], *x = &args->in[BWD], *y = &args->out[0], *views[] = {dy, x, y};
    int64_t           count = type_numel(&y->type), begin = 0;
    if (views_are(y->type.dtype, views, 3)) {
        CUDA_FLOAT(y->type.dtype, T, {
            int64_t packs = count / Pack<T>::N;
            begin = packs * Pack<T>::N;
            if (packs)
                gelu_packs<T, TANH, BWD><<<cuda_grid(packs, THREADS), THREADS, 0, cuda_stream(args)>>>(
                    (const T *)dy->data, (const T *)x->data, (T *)y->data, packs);
        });
    }
    if (begin < count)
        gelu_elements<TANH, BWD><<<cuda_grid(count - begin, THREADS), THREADS, 0, cuda_stream(args)>>>(*dy, *x, *y, begin, count);
    return CUDA_LAUNCHED();
}

static Status gelu_run(const KernelArgs *args)
{
    return ((const GeluAttrs *)args->attrs)->tanh ? gelu_launch<true, false>(args) : gelu_launch<false, false>(args);
}

static Status gelu_bwd_run(const KernelArgs *args)
{
    return ((const GeluAttrs *)args->attrs)->tanh ? gelu_launch<true, true>(args) : gelu_launch<false, true>(args);
}

CUDA_KERNELS(gelu, {.dtypes = DT_SET_FLOAT, .run = gelu_run, .name = "packs"})
CUDA_KERNELS(gelu_bwd, {.dtypes = DT_SET_FLOAT, .run = gelu_bwd_run, .name = "packs"})
