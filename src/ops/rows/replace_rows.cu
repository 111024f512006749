/* replace_rows and rows_at on CUDA. replace_rows copies the whole matrix, then one block per id writes the id's row. If an id is given
 * twice the last one counts, whatever the order of blocks. An id outside the matrix is skipped; rows_at gives NaN for it. */
#include "device/cuda/vec_f16.cuh"
#include "ops/attrs.h"
#include "ops/rows.cuh"

enum { ROW_THREADS = 256 };

static __device__ bool is_last(const int64_t *ids, int64_t k, int64_t count)
{
    for (int64_t i = k + 1; i < count; i++)
        if (ids[i] == ids[k]) return false;
    return true;
}

static __global__ void replace_rows_put(const int64_t *ids, int64_t count, TensorView rows, TensorView y)
{
    int64_t k = blockIdx.x, id = ids[k], cols = y.type.dim[1];
    if (id < 0 || id >= y.type.dim[0] || !is_last(ids, k, count)) return;
    for (int64_t c = threadIdx.x; c < cols; c += ROW_THREADS)
        any_set(y.data, y.type.dtype, id * cols + c, rows.data ? any_get(rows.data, rows.type.dtype, k * cols + c) : 0.0f);
}

static __global__ void rows_at_take(TensorView dy, const int64_t *ids, int64_t count, TensorView drows, bool adds)
{
    int64_t k = blockIdx.x, id = ids[k], cols = dy.type.dim[1];
    bool    inside = id >= 0 && id < dy.type.dim[0], counts = is_last(ids, k, count);
    for (int64_t c = threadIdx.x; c < cols; c += ROW_THREADS) {
        float value = !inside ? NAN : counts ? any_get(dy.data, dy.type.dtype, id * cols + c) : 0.0f;
        if (adds) value += any_get(drows.data, drows.type.dtype, k * cols + c);
        any_set(drows.data, drows.type.dtype, k * cols + c, value);
    }
}

static Status replace_rows_run(const KernelArgs *args)
{
    const TensorView *w = &args->in[0], *y = &args->out[0];
    int64_t           count = args->in[1].type.dim[0];
    cudaMemcpyAsync(y->data, w->data, (size_t)type_bytes(&y->type), cudaMemcpyDeviceToDevice, cuda_stream(args));
    replace_rows_put<<<(unsigned)count, ROW_THREADS, 0, cuda_stream(args)>>>((const int64_t *)args->in[1].data, count, args->in[2], *y);
    return CUDA_LAUNCHED();
}

static Status rows_at_run(const KernelArgs *args)
{
    int64_t count = args->in[1].type.dim[0];
    rows_at_take<<<(unsigned)count, ROW_THREADS, 0, cuda_stream(args)>>>(args->in[0], (const int64_t *)args->in[1].data, count,
                                                                         args->out[0], args->accumulate & 1);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(replace_rows, {.dtypes = DT_SET_DECODE, .run = replace_rows_run, .name = "rows"})
CUDA_KERNELS(rows_at, {.dtypes = DT_SET_FLOAT, .run = rows_at_run, .name = "rows"})
