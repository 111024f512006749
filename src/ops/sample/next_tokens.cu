/* next_tokens on CUDA: one thread per row. */
#include "ops/rows.cuh"

static __global__ void next_tokens_rows(const int32_t *tokens, const int32_t *slots, const int32_t *next, int32_t *y, int64_t rows,
                                        int64_t num_slots)
{
    int64_t b = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    release_launches();
    await_launches();
    if (b >= rows) return;
    int32_t chosen = slots[b] >= 0 && slots[b] < num_slots ? next[slots[b]] : 0;
    y[b] = tokens[b] >= 0 ? tokens[b] : max(chosen, 0);
}

static Status next_tokens_run(const KernelArgs *args)
{
    int64_t rows = args->in[0].type.dim[0];
    return cuda_launch_early(args->early, next_tokens_rows, dim3(cuda_grid(rows, 128)), 128, 0, cuda_stream(args),
                             (const int32_t *)args->in[0].data, (const int32_t *)args->in[1].data, (const int32_t *)args->in[2].data,
                             (int32_t *)args->out[0].data, rows, args->in[2].type.dim[0]);
}

CUDA_KERNELS(next_tokens, {.dtypes = DT_SET_FLOAT, .run = next_tokens_run, .name = "rows"})
