/* take_rows and put_rows on CUDA: the rows are contiguous and are copied at once; rows that are added to y go element by element. */
#include "device/cuda/vec_f16.cuh"
#include "ops/attrs.h"
#include "ops/rows.cuh"

enum { ROWS_THREADS = 256 };

static int64_t row_numel(const TensorType *type)
{
    return type_numel(type) / (type->dim[0] * type->dim[1]);
}

/* y[first + i] += x[i]. */
static __global__ void put_rows_add(TensorView x, TensorView y, int64_t first, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * ROWS_THREADS)
        any_set(y.data, y.type.dtype, first + i, any_get(y.data, y.type.dtype, first + i) + any_get(x.data, x.type.dtype, i));
}

static Status copy_elements(const KernelArgs *args, void *to, const void *from, DType dtype, int64_t count)
{
    cudaMemcpyAsync(to, from, (size_t)dtype_bytes(dtype, count), cudaMemcpyDeviceToDevice, cuda_stream(args));
    return CUDA_LAUNCHED();
}

static Status take_rows_run(const KernelArgs *args)
{
    const TensorType *y = &args->out[0].type;
    int64_t           first = ((const RowsAttrs *)args->attrs)->begin * row_numel(&args->in[0].type);
    return copy_elements(args, args->out[0].data, (const char *)args->in[0].data + dtype_bytes(y->dtype, first), y->dtype, type_numel(y));
}

static Status put_rows_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *y = &args->out[0];
    int64_t           first = ((const RowsAttrs *)args->attrs)->begin * row_numel(&y->type), count = type_numel(&x->type),
            bytes = type_bytes(&y->type);
    char *to = (char *)y->data + dtype_bytes(y->type.dtype, first);
    if (args->accumulate & 1) {
        put_rows_add<<<cuda_grid(count, ROWS_THREADS), ROWS_THREADS, 0, cuda_stream(args)>>>(*x, *y, first, count);
        return CUDA_LAUNCHED();
    }
    cudaMemsetAsync(y->data, 0, (size_t)bytes, cuda_stream(args));
    return copy_elements(args, to, x->data, y->type.dtype, count);
}

CUDA_KERNELS(take_rows, {.dtypes = DT_SET_ANY, .run = take_rows_run, .name = "rows"})
CUDA_KERNELS(put_rows, {.dtypes = DT_SET_DECODE, .run = put_rows_run, .name = "rows"})
