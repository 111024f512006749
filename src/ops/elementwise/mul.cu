/* mul on CUDA. */
#include "ops/elementwise/broadcast.cuh"

#include "ops/elementwise/functions.cuh"

static Status mul_run(const KernelArgs *args)
{
    return broadcast_run(args, Mul());
}

CUDA_KERNELS(mul, {.dtypes = DT_SET_DECODE, .run = mul_run, .name = "packs"})
