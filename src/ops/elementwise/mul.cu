/* mul on CUDA. */
#include "ops/elementwise/broadcast.cuh"

struct Mul {
    __device__ float operator()(float a, float b, float) const
    {
        return a * b;
    }
};

static Status mul_run(const KernelArgs *args)
{
    return broadcast_run(args, Mul());
}

CUDA_KERNELS(mul, {.dtypes = DT_SET_DECODE, .run = mul_run, .name = "packs"})
