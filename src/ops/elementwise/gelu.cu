/* gelu and gelu_bwd on CUDA. */
#include "ops/elementwise/gelu.h"
#include "ops/map.cuh"

/* gelu(x) and its slope. TANH: by the approximation. */
template <bool TANH> static __device__ __forceinline__ float gelu_of(float x, float *slope)
{
    if (TANH) {
        float s = 1.0f / (1.0f + expf(-gelu_argument(x)));
        *slope = s + x * s * (1.0f - s) * gelu_argument_slope(x);
        return x * s;
    }
    float below = normcdff(x);
    *slope = below + 0.3989422804f * x * expf(-0.5f * x * x);
    return x * below;
}

template <bool TANH> struct Gelu {
    __device__ float operator()(float x, float) const
    {
        float slope;
        return gelu_of<TANH>(x, &slope);
    }
};

template <bool TANH> struct GeluBwd {
    __device__ float operator()(float dy, float x) const
    {
        float slope;
        gelu_of<TANH>(x, &slope);
        return dy * slope;
    }
};

static Status gelu_run(const KernelArgs *args)
{
    return ((const GeluAttrs *)args->attrs)->tanh ? map_run(args, Gelu<true>()) : map_run(args, Gelu<false>());
}

static Status gelu_bwd_run(const KernelArgs *args)
{
    return ((const GeluAttrs *)args->attrs)->tanh ? map_run(args, GeluBwd<true>()) : map_run(args, GeluBwd<false>());
}

CUDA_KERNELS(gelu, {.dtypes = DT_SET_DECODE, .run = gelu_run, .name = "packs"})
CUDA_KERNELS(gelu_bwd, {.dtypes = DT_SET_FLOAT, .run = gelu_bwd_run, .name = "packs"})
