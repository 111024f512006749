/* relu and relu_bwd on CUDA. */
#include "ops/attrs.h"
#include "ops/map.cuh"

#include "ops/elementwise/functions.cuh"

static bool is_squared(const KernelArgs *args)
{
    return ((const ReluAttrs *)args->attrs)->squared;
}

static Status relu_run(const KernelArgs *args)
{
    return map_run(args, Relu{is_squared(args)});
}

static Status relu_bwd_run(const KernelArgs *args)
{
    return map_run(args, ReluBwd{is_squared(args)});
}

CUDA_KERNELS(relu, {.dtypes = DT_SET_DECODE, .run = relu_run, .name = "packs"})
CUDA_KERNELS(relu_bwd, {.dtypes = DT_SET_FLOAT, .run = relu_bwd_run, .name = "packs"})
