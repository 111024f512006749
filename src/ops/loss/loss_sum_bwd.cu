/* loss_sum_bwd on CUDA: stores inv_tokens d everywhere. */
#include "ops/rows.cuh"

static __global__ void loss_sum_bwd_fill(const float *hyper, const float *d, float *dlosses, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) dlosses[i] = d ? hyper[HYPER_INV_TOKENS] * *d : hyper[HYPER_INV_TOKENS];
}

static Status loss_sum_bwd_run(const KernelArgs *args)
{
    int64_t count = type_numel(&args->out[0].type);
    loss_sum_bwd_fill<<<(unsigned)cuda_div_up(count, 256), 256, 0, cuda_stream(args)>>>(
        (const float *)args->in[0].data, (const float *)args->in[1].data, (float *)args->out[0].data, count);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(loss_sum_bwd, {.dtypes = DT_SET_F32, .run = loss_sum_bwd_run, .name = "fill"})
