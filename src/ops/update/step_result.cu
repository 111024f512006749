/* step_result on CUDA: one thread. The ring may be pinned host memory, written through the bus. */
#include "ops/rows.cuh"

enum { IN_LOSS, IN_NORM2, IN_APPLIED, IN_STEP, IN_RING, IN_SCALARS };

/* Values of a row, by RESULT_... */
struct ResultRow {
    const float *numbers[RESULT_MOST];
    int          count;
};

static __global__ void step_result_row(ResultRow row, const int64_t *step, float *ring, int64_t cols)
{
    float *out = ring + (uint64_t)step[STEP_INDEX] % RESULT_ROWS * cols;
    for (int i = 0; i < row.count; i++) out[i] = *row.numbers[i];
}

static Status step_result_run(const KernelArgs *args)
{
    ResultRow row = {{}, RESULT_SCALARS};
    row.numbers[RESULT_LOSS] = (const float *)args->in[IN_LOSS].data;
    row.numbers[RESULT_NORM2] = (const float *)args->in[IN_NORM2].data;
    row.numbers[RESULT_APPLIED] = (const float *)args->in[IN_APPLIED].data;
    for (int i = 0; i < MOST_SCALARS && args->in[IN_SCALARS + i].data; i++)
        row.numbers[row.count++] = (const float *)args->in[IN_SCALARS + i].data;
    step_result_row<<<1, 1, 0, cuda_stream(args)>>>(row, (const int64_t *)args->in[IN_STEP].data, (float *)args->out[0].data,
                                                    type_cols(&args->out[0].type));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(step_result, {.dtypes = DT_SET_F32, .run = step_result_run, .name = "row"})
