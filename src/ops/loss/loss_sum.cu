/* loss_sum on CUDA: one block adds in double, in a fixed order. */
#include "ops/rows.cuh"

static __global__ void loss_sum_block(const float *losses, int64_t count, const float *hyper, float *out, bool add)
{
    __shared__ double sums[1024];
    double            sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += (double)losses[i];
    sums[threadIdx.x] = sum;
    for (unsigned half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x) return;
    sum = sums[0] * (double)hyper[HYPER_INV_TOKENS];
    *out = (float)(add ? (double)*out + sum : sum);
}

static Status loss_sum_run(const KernelArgs *args)
{
    loss_sum_block<<<1, 1024, 0, cuda_stream(args)>>>((const float *)args->in[0].data, type_numel(&args->in[0].type),
                                                      (const float *)args->in[1].data, (float *)args->out[0].data, args->accumulate & 1);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(loss_sum, {.dtypes = DT_SET_F32, .run = loss_sum_run, .name = "block"})
