/* full on CUDA: one thread per element. It runs just once. */
#include "ops/attrs.h"
#include "ops/rows.cuh"

template <typename T> static __global__ void full_fill(FullAttrs a, T *y)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.size) y[i] = (T)a.value;
}

static Status full_run(const KernelArgs *args)
{
    const FullAttrs *attrs = (const FullAttrs *)args->attrs;
    unsigned         blocks = (unsigned)cuda_div_up(attrs->size, 256);
    if (args->out[0].type.dtype == DT_I32)
        full_fill<<<blocks, 256, 0, cuda_stream(args)>>>(*attrs, (int32_t *)args->out[0].data);
    else
        full_fill<<<blocks, 256, 0, cuda_stream(args)>>>(*attrs, (float *)args->out[0].data);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(full, {.dtypes = DT_SET_F32, .run = full_run, .name = "elements"})
