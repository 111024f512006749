/* tell_rows on CUDA: one thread block per row. The ring may be pinned host memory, written through the bus. */
#include "ops/rows.cuh"

enum { IN_STEP, IN_RING, IN_IDS, IN_LOGPROBS, IN_BEST_IDS, IN_BEST_LOGPROBS };

struct Told {
    const int64_t *step;
    const int32_t *ids, *best_ids;
    const float   *logprobs, *best_logprobs;
    int64_t        entries, rows, cols, best;
};

static __global__ void tell_row(Told told, int32_t *ring)
{
    int64_t b = blockIdx.x;
    release_launches();
    await_launches();
    int32_t *out = ring + ((int64_t)((uint64_t)told.step[STEP_RUN] % (uint64_t)told.entries) * told.rows + b) * told.cols;
    for (int64_t i = threadIdx.x; i < told.cols; i += blockDim.x) {
        int64_t at = i - 3;
        out[i] = i == 0           ? told.ids[b]
                 : i < 3          ? __float_as_int(told.logprobs[2 * b + i - 1])
                 : at < told.best ? told.best_ids[b * told.best + at]
                                  : __float_as_int(told.best_logprobs[b * told.best + at - told.best]);
    }
}

static Status tell_rows_run(const KernelArgs *args)
{
    const TensorType *ring = &args->in[IN_RING].type;
    Told              told = {(const int64_t *)args->in[IN_STEP].data,
                              (const int32_t *)args->in[IN_IDS].data,
                              (const int32_t *)args->in[IN_BEST_IDS].data,
                              (const float *)args->in[IN_LOGPROBS].data,
                              (const float *)args->in[IN_BEST_LOGPROBS].data,
                              ring->dim[0],
                              ring->dim[1],
                              ring->dim[2],
                              args->in[IN_BEST_IDS].type.dim[1]};
    return cuda_launch_early(args->early, tell_row, dim3((unsigned)args->in[IN_IDS].type.dim[0]), 32, 0, cuda_stream(args), told,
                             (int32_t *)args->out[0].data);
}

CUDA_KERNELS(tell_rows, {.dtypes = DT_SET_FLOAT, .run = tell_rows_run, .name = "rows"})
