/* gelu and gelu_bwd on CUDA. */
#include "ops/map.cuh"

#include "ops/elementwise/functions.cuh"

static Status gelu_run(const KernelArgs *args)
{
    return ((const GeluAttrs *)args->attrs)->tanh ? map_run(args, GeluTanh()) : map_run(args, GeluErf());
}

static Status gelu_bwd_run(const KernelArgs *args)
{
    return ((const GeluAttrs *)args->attrs)->tanh ? map_run(args, GeluTanhBwd()) : map_run(args, GeluErfBwd());
}

CUDA_KERNELS(gelu, {.dtypes = DT_SET_DECODE, .run = gelu_run, .name = "packs"})
CUDA_KERNELS(gelu_bwd, {.dtypes = DT_SET_FLOAT, .run = gelu_bwd_run, .name = "packs"})
