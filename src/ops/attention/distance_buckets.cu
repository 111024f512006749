/* distance_buckets on CUDA: a thread computes one distance; the kernel runs once per program. */
#include "ops/attention/distance_buckets.h"
#include "ops/rows.cuh"

static __global__ void distance_buckets_fill(DistanceBucketsAttrs a, int32_t *ids)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.len) ids[i] = (int32_t)distance_bucket(&a, i);
}

static Status distance_buckets_run(const KernelArgs *args)
{
    const DistanceBucketsAttrs *attrs = (const DistanceBucketsAttrs *)args->attrs;
    distance_buckets_fill<<<(unsigned)cuda_div_up(attrs->len, 256), 256, 0, cuda_stream(args)>>>(*attrs, (int32_t *)args->out[0].data);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(distance_buckets, {.dtypes = DT_SET_FLOAT, .run = distance_buckets_run, .name = "buckets"})
