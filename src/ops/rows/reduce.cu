/* sum, mean, max and expand on CUDA. Over the last dim a block has a row. Over another dim a block has 32 neighbouring lines, one a lane,
 * and its warps share the lines' elements. Either order of additions depends only on shapes. */
#include "device/cuda/vec_f16.cuh"
#include "ops/rows.cuh"

#include "ops/rows/reduce.h"

enum { WARPS = 32 };

/* ---- sums ---- */

template <typename T> static __global__ void sum_rows(const T *x, TensorView y, int64_t rows, int64_t cols, bool vec, float divisor)
{
    enum { N = Pack<T>::N };
    __shared__ float scratch[32];
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * cols;
        float    sum = 0;
        int64_t  packs = vec ? cols / N : 0;
        for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
            float v[N];
            load_pack(from + i * N, v);
#pragma unroll
            for (int k = 0; k < N; k++) sum += v[k];
        }
        for (int64_t c = packs * N + threadIdx.x; c < cols; c += blockDim.x) sum += to_float(from[c]);
        sum = block_sum(sum, scratch);
        if (threadIdx.x == 0) any_set(y.data, y.type.dtype, row, sum / divisor);
    }
}

static __global__ void sum_lines(TensorView x, TensorView y, Lines lines, float divisor)
{
    __shared__ float sums[WARPS][33];
    int64_t          groups = cuda_div_up_device(lines.inner, 32);
    for (int64_t item = blockIdx.x; item < lines.outer * groups; item += gridDim.x) {
        int64_t outer = item / groups, j = item % groups * 32 + threadIdx.x;
        float   sum = 0;
        for (int64_t i = threadIdx.y; i < lines.count && j < lines.inner; i += WARPS)
            sum += any_get(x.data, x.type.dtype, (outer * lines.count + i) * lines.inner + j);
        sums[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && j < lines.inner) {
            for (int w = 1; w < WARPS; w++) sum += sums[w][threadIdx.x];
            any_set(y.data, y.type.dtype, outer * lines.inner + j, sum / divisor);
        }
        __syncthreads();
    }
}

static Lines lines_of(const KernelArgs *args, const TensorType *type)
{
    return lines_around(type, dim_of(((const ReduceAttrs *)args->attrs)->dim, type->ndim));
}

static Status sums_run(const KernelArgs *args, bool mean)
{
    const TensorView *x = &args->in[0], *y = &args->out[0];
    Lines             lines = lines_of(args, &x->type);
    float             divisor = mean ? (float)lines.count : 1.0f;
    if (lines.inner > 1) {
        sum_lines<<<cuda_grid(lines.outer * cuda_div_up(lines.inner, 32), 1), dim3(32, WARPS), 0, cuda_stream(args)>>>(*x, *y, lines,
                                                                                                                       divisor);
        return CUDA_LAUNCHED();
    }
    CUDA_FLOAT_ANY(x->type.dtype, T, {
        bool     vec = lines.count % Pack<T>::N == 0 && is_aligned16(x->data);
        unsigned threads = row_threads(cuda_div_up(lines.count, vec ? (int64_t)Pack<T>::N : 1));
        sum_rows<T>
            <<<cuda_grid(lines.outer, 1), threads, 0, cuda_stream(args)>>>((const T *)x->data, *y, lines.outer, lines.count, vec, divisor);
    });
    return CUDA_LAUNCHED();
}

static Status sum_run(const KernelArgs *args)
{
    return sums_run(args, false);
}

static Status mean_run(const KernelArgs *args)
{
    return sums_run(args, true);
}

/* ---- max ---- */

/* An element and its index; place -1: none yet. */
struct Most {
    float   value;
    int32_t place;

    /* NaN is larger than any number; of equal elements the first counts. */
    __device__ void take(float v, int32_t at)
    {
        bool above = v > value || (v != v && value == value), equal = v == value || (v != v && value != value);
        if (at >= 0 && (place < 0 || above || (equal && at < place))) {
            value = v;
            place = at;
        }
    }
};

static __device__ void most_store(TensorView y, TensorView ids, int64_t at, Most most)
{
    if (y.data) any_set(y.data, y.type.dtype, at, most.value);
    if (ids.data) ((int32_t *)ids.data)[at] = most.place;
}

/* A block has `across` neighbouring lines: 32, or 1 over the last dim. Threads with equal threadIdx.x % across have the same line and share
 * its elements. */
static __global__ void max_lines(TensorView x, TensorView y, TensorView ids, Lines lines, int across)
{
    __shared__ Most found[1024];
    int             lane = threadIdx.x % across, part = threadIdx.x / across, parts = blockDim.x / across;
    int64_t         groups = cuda_div_up_device(lines.inner, across);
    for (int64_t item = blockIdx.x; item < lines.outer * groups; item += gridDim.x) {
        int64_t outer = item / groups, j = item % groups * across + lane;
        Most    most = {0, -1};
        for (int64_t i = part; i < lines.count && j < lines.inner; i += parts)
            most.take(any_get(x.data, x.type.dtype, (outer * lines.count + i) * lines.inner + j), (int32_t)i);
        found[threadIdx.x] = most;
        __syncthreads();
        for (int half = parts / 2; half; half /= 2) {
            if (part < half) {
                Most other = found[threadIdx.x + half * across];
                found[threadIdx.x].take(other.value, other.place);
            }
            __syncthreads();
        }
        if (part == 0 && j < lines.inner) most_store(y, ids, outer * lines.inner + j, found[lane]);
        __syncthreads();
    }
}

static Status max_run(const KernelArgs *args)
{
    Lines    lines = lines_of(args, &args->in[0].type);
    int      across = lines.inner > 1 ? 32 : 1;
    unsigned threads = 32;
    while (threads < 1024 && threads < lines.count * across) threads *= 2;
    max_lines<<<cuda_grid(lines.outer * cuda_div_up(lines.inner, across), 1), threads, 0, cuda_stream(args)>>>(args->in[0], args->out[0],
                                                                                                               args->out[1], lines, across);
    return CUDA_LAUNCHED();
}

/* ---- expand ---- */

static __global__ void expand_elements(TensorView x, TensorView y, Lines lines, int64_t count)
{
    int64_t all = lines.count * lines.inner;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x)
        any_set(y.data, y.type.dtype, i, any_get(x.data, x.type.dtype, i / all * lines.inner + i % lines.inner));
}

static Status expand_run(const KernelArgs *args)
{
    const TensorView *y = &args->out[0];
    int64_t           count = type_numel(&y->type);
    expand_elements<<<cuda_grid(count, 256), 256, 0, cuda_stream(args)>>>(args->in[0], *y, lines_of(args, &y->type), count);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(sum, {.dtypes = DT_SET_DECODE, .run = sum_run, .name = "lines"})
CUDA_KERNELS(mean, {.dtypes = DT_SET_DECODE, .run = mean_run, .name = "lines"})
CUDA_KERNELS(max, {.dtypes = DT_SET_DECODE, .run = max_run, .name = "lines"})
CUDA_KERNELS(expand, {.dtypes = DT_SET_DECODE, .run = expand_run, .name = "elements"})
