/* alibi_table on CUDA: a thread computes one element; the kernel runs once per program. */
#include "ops/attention/alibi_table.h"
#include "ops/rows.cuh"

static __global__ void alibi_table_fill(AlibiTableAttrs a, float *table)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, d = at / a.num_heads;
    if (d < a.len) table[at] = (float)(-alibi_slope(&a, at % a.num_heads) * (double)d);
}

static Status alibi_table_run(const KernelArgs *args)
{
    const AlibiTableAttrs *attrs = (const AlibiTableAttrs *)args->attrs;
    alibi_table_fill<<<(unsigned)cuda_div_up(attrs->len * attrs->num_heads, 256), 256, 0, cuda_stream(args)>>>(*attrs,
                                                                                                               (float *)args->out[0].data);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(alibi_table, {.dtypes = DT_SET_F32, .run = alibi_table_run, .name = "slopes"})
