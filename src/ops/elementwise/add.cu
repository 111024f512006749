/* add on CUDA. */
#include "ops/elementwise/broadcast.cuh"

#include "ops/elementwise/functions.cuh"

static Status add_run(const KernelArgs *args)
{
    return broadcast_run(args, Add());
}

CUDA_KERNELS(add, {.dtypes = DT_SET_DECODE, .run = add_run, .name = "packs"})
