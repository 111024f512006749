/* rope_table on CUDA: a thread computes one angle, in double; the kernel runs once per program. */
#include "ops/attrs.h"
#include "ops/rows.cuh"

static __global__ void rope_table_fill(RopeTableAttrs a, float *table)
{
    int64_t half = a.head_dim / 2, at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.len * half) return;
    int64_t p = at / half, i = at - p * half;
    double  frequency = a.frequencies.count ? a.frequencies.values[i] : pow(a.theta, -2.0 * (double)i / (double)a.head_dim);
    table[p * 2 * half + i] = (float)(a.scale * cos((double)p * frequency));
    table[p * 2 * half + half + i] = (float)(a.scale * sin((double)p * frequency));
}

static Status rope_table_run(const KernelArgs *args)
{
    const RopeTableAttrs *attrs = (const RopeTableAttrs *)args->attrs;
    rope_table_fill<<<(unsigned)cuda_div_up(attrs->len * attrs->head_dim / 2, 256), 256, 0, cuda_stream(args)>>>(
        *attrs, (float *)args->out[0].data);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(rope_table, {.dtypes = DT_SET_F32, .run = rope_table_run, .name = "angles"})
