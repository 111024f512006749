/* gather_rows on CUDA: a block copies a row of the result, 16 bytes a thread if rows are multiples of that. An id outside x gives NaN. */
#include "device/cuda/vec_f16.cuh"
#include "ops/rows.cuh"

template <typename T>
static __global__ void gather_rows_packs(const T *x, const int32_t *ids, T *y, int64_t count, int64_t rows, int64_t cols)
{
    enum { N = Pack<T>::N };
    for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
        int32_t id = ids[row];
        bool    inside = id >= 0 && id < rows;
        for (int64_t c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
            float v[N];
            if (inside)
                load_pack(x + id * cols + c, v);
            else
                for (int k = 0; k < N; k++) v[k] = NAN;
            store_pack(y + row * cols + c, v);
        }
    }
}

static __global__ void gather_rows_elements(TensorView x, const int32_t *ids, TensorView y, int64_t count, int64_t rows, int64_t cols)
{
    for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
        int32_t id = ids[row];
        bool    inside = id >= 0 && id < rows;
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
            any_set(y.data, y.type.dtype, row * cols + c, inside ? any_get(x.data, x.type.dtype, id * cols + c) : NAN);
    }
}

static Status gather_rows_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *y = &args->out[0];
    const int32_t    *ids = (const int32_t *)args->in[1].data;
    int64_t           count = type_numel(&args->in[1].type), rows = x->type.dim[0], cols = x->type.dim[1];
    CUDA_FLOAT_ANY(x->type.dtype, T, {
        if (cols % Pack<T>::N == 0 && is_aligned16(x->data) && is_aligned16(y->data)) {
            gather_rows_packs<T><<<cuda_grid(count, 1), row_threads(cols / Pack<T>::N), 0, cuda_stream(args)>>>(
                (const T *)x->data, ids, (T *)y->data, count, rows, cols);
            return CUDA_LAUNCHED();
        }
    });
    gather_rows_elements<<<cuda_grid(count, 1), row_threads(cols), 0, cuda_stream(args)>>>(*x, ids, *y, count, rows, cols);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(gather_rows, {.dtypes = DT_SET_DECODE, .run = gather_rows_run, .name = "rows"})
