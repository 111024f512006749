/* embedding_dw and scatter_add_rows on CUDA: positions are sorted by token (a stable radix sort); then one block adds each token's rows of
 * dx in order of position. There are no atomics, so the bits are the same every time. Tokens outside the table are skipped. Rows of zeros
 * are skipped too: all padding has the same token, and its block would still add rows long after the other blocks have ended. */
#include "ops/rows.cuh"

#include <cub/device/device_radix_sort.cuh>

/* Parts of the workspace: keys, sorted keys, positions, sorted positions (count i32 each), then scratch of the sort. */
typedef struct Sort {
    int32_t *keys, *sorted, *positions, *order;
    void    *scratch;
    size_t   scratch_bytes;
} Sort;

static size_t padded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static size_t sort_scratch_bytes(int64_t count)
{
    size_t bytes = 0;
    cub::DeviceRadixSort::SortPairs(NULL, bytes, (const int32_t *)NULL, (int32_t *)NULL, (const int32_t *)NULL, (int32_t *)NULL,
                                    (int)count);
    return bytes;
}

static Sort sort_layout(void *workspace, int64_t count)
{
    size_t column = padded((size_t)count * 4);
    char  *p = (char *)workspace;
    Sort   s = {(int32_t *)p,   (int32_t *)(p + column),  (int32_t *)(p + 2 * column), (int32_t *)(p + 3 * column),
                p + 4 * column, sort_scratch_bytes(count)};
    return s;
}

/* A warp has a position. Most warps find a nonzero element among the first 32 of their row. */
static __global__ void fill_keys(const int32_t *tokens, TensorView dx, int32_t *keys, int32_t *positions, int64_t count, int64_t cols,
                                 int64_t vocab)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int     lane = threadIdx.x & 31, any = 0;
    if (i >= count) return;
    for (int64_t c = lane; c - lane < cols && !any; c += 32)
        any = __any_sync(0xFFFFFFFFu, c < cols && elem_get(dx.data, dx.type.dtype, i * cols + c) != 0);
    if (lane) return;
    int32_t token = tokens[i];
    keys[i] = any && token >= 0 && token < vocab ? token : (int32_t)vocab; /* `vocab` sorts last, and is skipped */
    positions[i] = (int32_t)i;
}

/* Block i adds the run of one token that begins at sorted position i, if a run begins there; threads take columns. */
static __global__ void add_runs(const int32_t *sorted, const int32_t *order, TensorView dx, TensorView dw, int64_t count, int64_t cols,
                                int64_t vocab)
{
    int64_t begin = blockIdx.x, end = begin + 1;
    int32_t token = sorted[begin];
    if (token >= vocab || (begin && sorted[begin - 1] == token)) return;
    while (end < count && sorted[end] == token) end++;
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
        float   sum = 0;
        int64_t i = begin;
        for (; i + 4 <= end; i += 4) { /* four loads in flight */
            float a = elem_get(dx.data, dx.type.dtype, order[i] * cols + c), b = elem_get(dx.data, dx.type.dtype, order[i + 1] * cols + c);
            float d = elem_get(dx.data, dx.type.dtype, order[i + 2] * cols + c),
                  e = elem_get(dx.data, dx.type.dtype, order[i + 3] * cols + c);
            sum = (((sum + a) + b) + d) + e;
        }
        for (; i < end; i++) sum += elem_get(dx.data, dx.type.dtype, order[i] * cols + c);
        int64_t at = token * cols + c;
        elem_set(dw.data, dw.type.dtype, at, elem_get(dw.data, dw.type.dtype, at) + sum);
    }
}

static Status rows_added_run(const KernelArgs *args, const TensorView *tokens, const TensorView *dx)
{
    const TensorView *dw = &args->out[0];
    int64_t           count = type_numel(&tokens->type), cols = type_cols(&dx->type), vocab = dw->type.dim[0];
    Sort              s = sort_layout(args->workspace, count);
    cudaStream_t      stream = cuda_stream(args);
    int               bits = 1;
    while (bits < 31 && (vocab >> bits)) bits++;
    if (!(args->accumulate & 1)) CUDA_TRY(cudaMemsetAsync(dw->data, 0, (size_t)type_bytes(&dw->type), stream));
    fill_keys<<<(unsigned)cuda_div_up(count, 8), 256, 0, stream>>>((const int32_t *)tokens->data, *dx, s.keys, s.positions, count, cols,
                                                                   vocab);
    CUDA_TRY(
        cub::DeviceRadixSort::SortPairs(s.scratch, s.scratch_bytes, s.keys, s.sorted, s.positions, s.order, (int)count, 0, bits, stream));
    add_runs<<<(unsigned)count, 256, 0, stream>>>(s.sorted, s.order, *dx, *dw, count, cols, vocab);
    return CUDA_LAUNCHED();
}

static Status embedding_dw_run(const KernelArgs *args)
{
    return rows_added_run(args, &args->in[0], &args->in[1]);
}

static size_t rows_added_bytes(int64_t count)
{
    return 4 * padded((size_t)count * 4) + padded(sort_scratch_bytes(count));
}

static size_t embedding_dw_workspace(const Node *node, CudaDevice *device)
{
    (void)device;
    return rows_added_bytes(type_numel(&node->in[0]->type));
}

/* Unlike embedding_dw, scatter_add_rows has the ids as its second input. */
static Status scatter_add_rows_run(const KernelArgs *args)
{
    return rows_added_run(args, &args->in[1], &args->in[0]);
}

static size_t scatter_add_rows_workspace(const Node *node, CudaDevice *device)
{
    (void)device;
    return rows_added_bytes(type_numel(&node->in[1]->type));
}

CUDA_KERNELS(embedding_dw, {.dtypes = DT_SET_FLOAT, .run = embedding_dw_run, .name = "sorted", .workspace = embedding_dw_workspace})
CUDA_KERNELS(scatter_add_rows,
             {.dtypes = DT_SET_FLOAT, .run = scatter_add_rows_run, .name = "sorted", .workspace = scatter_add_rows_workspace})
