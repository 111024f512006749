/* scale on CUDA. */
#include "ops/attrs.h"
#include "ops/map.cuh"

struct Scale {
    float by;

    __device__ float operator()(float x, float) const
    {
        return by * x;
    }
};

static Status scale_run(const KernelArgs *args)
{
    return map_run(args, Scale{(float)((const ScaleAttrs *)args->attrs)->by});
}

CUDA_KERNELS(scale, {.dtypes = DT_SET_DECODE, .run = scale_run, .name = "packs"})
