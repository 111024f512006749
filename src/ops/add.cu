/* add on CUDA. */
#include "ops/map.cuh"

struct Add {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

static Status add_run(const KernelArgs *args)
{
    return map_run(args, Add());
}

CUDA_KERNELS(add, {.dtypes = DT_SET_FLOAT, .run = add_run, .name = "packs"})
