/* step_result on CUDA: one thread. The ring may be pinned memory of the host, which it writes through the bus. */
#include "ops/rows.cuh"

enum { IN_LOSS, IN_NORM2, IN_APPLIED, IN_STEP, IN_RING, IN_ACCURACY };

static __global__ void step_result_row(const float *loss, const float *norm2, const float *applied, const float *accuracy,
                                       const int64_t *step, float *ring)
{
    float *out = ring + (uint64_t)step[STEP_INDEX] % RESULT_ROWS * RESULT_COUNT;
    out[RESULT_LOSS] = *loss;
    out[RESULT_NORM2] = *norm2;
    out[RESULT_APPLIED] = *applied;
    if (accuracy) out[RESULT_ACCURACY] = *accuracy;
}

static Status step_result_run(const KernelArgs *args)
{
    step_result_row<<<1, 1, 0, cuda_stream(args)>>>((const float *)args->in[IN_LOSS].data, (const float *)args->in[IN_NORM2].data,
                                                    (const float *)args->in[IN_APPLIED].data, (const float *)args->in[IN_ACCURACY].data,
                                                    (const int64_t *)args->in[IN_STEP].data, (float *)args->out[0].data);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(step_result, {.dtypes = DT_SET_F32, .run = step_result_run, .name = "row"})
