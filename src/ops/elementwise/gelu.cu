/* gelu and gelu_bwd on CUDA. */
#include "ops/map.cuh"

#include "ops/elementwise/functions.cuh"

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
