/* full on CUDA: a thread an element; it runs once. */
#include "ops/attrs.h"
#include "ops/rows.cuh"

static __global__ void full_fill(FullAttrs a, float *y)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.size) y[i] = (float)a.value;
}

static Status full_run(const KernelArgs *args)
{
    const FullAttrs *attrs = (const FullAttrs *)args->attrs;
    full_fill<<<(unsigned)cuda_div_up(attrs->size, 256), 256, 0, cuda_stream(args)>>>(*attrs, (float *)args->out[0].data);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(full, {.dtypes = DT_SET_F32, .run = full_run, .name = "elements"})
