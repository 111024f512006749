/* columns and columns_bwd on CUDA: a thread writes 16 bytes of the result, or one element if rows aren't multiples of 16 bytes. */
#include "device/cuda/vec_f16.cuh"
#include "ops/attrs.h"
#include "ops/rows.cuh"

enum { COLUMNS_THREADS = 256 };

/* Columns [first, first + count) of the result are written. Column c gets the source's column c - shift, or 0 if there is no such column.
 * add: the values are added to the result. */
typedef struct ColumnsMap {
    int64_t rows, cols, source_cols, first, count, shift;
    bool    add;
} ColumnsMap;

/* All sizes and columns in m count packs of N elements. */
template <typename T> static __global__ void columns_packs(const T *source, T *result, ColumnsMap m)
{
    enum { N = Pack<T>::N };
    for (int64_t i = (int64_t)blockIdx.x * COLUMNS_THREADS + threadIdx.x; i < m.rows * m.count; i += (int64_t)gridDim.x * COLUMNS_THREADS) {
        int64_t row = i / m.count, c = m.first + (i - row * m.count), from = c - m.shift;
        T      *to = result + (row * m.cols + c) * N;
        float   v[N] = {}, old[N] = {};
        if (from >= 0 && from < m.source_cols) load_pack(source + (row * m.source_cols + from) * N, v);
        if (m.add) load_pack(to, old);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] += old[k];
        store_pack(to, v);
    }
}

static __global__ void columns_elements(TensorView source, TensorView result, ColumnsMap m)
{
    for (int64_t i = (int64_t)blockIdx.x * COLUMNS_THREADS + threadIdx.x; i < m.rows * m.count; i += (int64_t)gridDim.x * COLUMNS_THREADS) {
        int64_t row = i / m.count, c = m.first + (i - row * m.count), from = c - m.shift, to = row * m.cols + c;
        float   v = from >= 0 && from < m.source_cols ? any_get(source.data, source.type.dtype, row * m.source_cols + from) : 0.0f;
        any_set(result.data, result.type.dtype, to, m.add ? any_get(result.data, result.type.dtype, to) + v : v);
    }
}

static Status columns_move(const KernelArgs *args, ColumnsMap m)
{
    const TensorView *source = &args->in[0], *result = &args->out[0], *views[] = {source, result};
    int64_t           each = 16 / dtype_bytes(result->type.dtype, 1);
    bool whole = m.cols % each == 0 && m.source_cols % each == 0 && m.first % each == 0 && m.count % each == 0 && m.shift % each == 0;
    if (whole && views_are(result->type.dtype, views, 2) && is_aligned16(source->data) && is_aligned16(result->data)) {
        ColumnsMap p = {m.rows, m.cols / each, m.source_cols / each, m.first / each, m.count / each, m.shift / each, m.add};
        CUDA_FLOAT_ANY(result->type.dtype, T, {
            columns_packs<T><<<cuda_grid(p.rows * p.count, COLUMNS_THREADS), COLUMNS_THREADS, 0, cuda_stream(args)>>>(
                (const T *)source->data, (T *)result->data, p);
        });
    } else {
        columns_elements<<<cuda_grid(m.rows * m.count, COLUMNS_THREADS), COLUMNS_THREADS, 0, cuda_stream(args)>>>(*source, *result, m);
    }
    return CUDA_LAUNCHED();
}

static Status columns_run(const KernelArgs *args)
{
    int64_t begin = ((const ColumnsAttrs *)args->attrs)->begin, size = type_cols(&args->out[0].type);
    return columns_move(args, ColumnsMap{type_rows(&args->out[0].type), size, type_cols(&args->in[0].type), 0, size, -begin, false});
}

static Status columns_bwd_run(const KernelArgs *args)
{
    int64_t begin = ((const ColumnsAttrs *)args->attrs)->begin, size = type_cols(&args->in[0].type), cols = type_cols(&args->out[0].type);
    bool    add = args->accumulate & 1;
    return columns_move(args, ColumnsMap{type_rows(&args->out[0].type), cols, size, add ? begin : 0, add ? size : cols, begin, add});
}

CUDA_KERNELS(columns, {.dtypes = DT_SET_DECODE, .run = columns_run, .name = "packs"})
CUDA_KERNELS(columns_bwd, {.dtypes = DT_SET_FLOAT, .run = columns_bwd_run, .name = "packs"})
