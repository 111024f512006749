/* scale on CUDA. */
#include "ops/attrs.h"
#include "ops/map.cuh"

#include "ops/elementwise/functions.cuh"

static Status scale_run(const KernelArgs *args)
{
    return map_run(args, Scale{(float)((const ScaleAttrs *)args->attrs)->by});
}

CUDA_KERNELS(scale, {.dtypes = DT_SET_DECODE, .run = scale_run, .name = "packs"})
