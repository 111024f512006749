/* col_sum on CUDA: partial sums of chunks of rows go to the workspace and are added in order. Reads are coalesced along columns. */
#include "ops/rows.cuh"

static __global__ void col_sum_chunks(TensorView dy, float *partial, int64_t rows, int64_t cols, int64_t chunk_rows)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, end = ((int64_t)blockIdx.y + 1) * chunk_rows;
    float   sum = 0;
    if (c >= cols) return;
    for (int64_t row = (int64_t)blockIdx.y * chunk_rows; row < rows && row < end; row++)
        sum += elem_get(dy.data, dy.type.dtype, row * cols + c);
    partial[(int64_t)blockIdx.y * cols + c] = sum;
}

static Status col_sum_run(const KernelArgs *args)
{
    const TensorView *dy = &args->in[0];
    int64_t           cols = type_cols(&dy->type), rows = type_rows(&dy->type), chunks = sum_num_chunks(rows);
    float            *partial = (float *)args->workspace;
    dim3              grid((unsigned)cuda_div_up(cols, 128), (unsigned)chunks);
    col_sum_chunks<<<grid, 128, 0, cuda_stream(args)>>>(*dy, partial, rows, cols, sum_chunk_rows(rows));
    launch_combine(args, 0, partial, chunks, cols, cols);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(col_sum, {.dtypes = DT_SET_FLOAT, .run = col_sum_run, .name = "chunks", .workspace = cuda_planned_workspace})
