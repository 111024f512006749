/* softmax, log_softmax and their gradients on CUDA: a block has a row. */
#include "device/cuda/vec_f16.cuh"
#include "ops/loss/cross_entropy.cuh"

/* Stores v, N elements, in the row from c on. */
template <int N, typename Y> static __device__ __forceinline__ void store_piece(Y *row, int64_t c, const float *v)
{
    if (N % Pack<Y>::N == 0) {
        store_n<N % Pack<Y>::N ? (int)Pack<Y>::N : N>(row + c, v);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) row[c + i] = from_float<Y>(v[i]);
    }
}

template <typename X, typename Y, bool VEC, bool LOG>
static __global__ void __launch_bounds__(ROW_THREADS) softmax_rows(const X *x, Y *y, int64_t cols)
{
    __shared__ float scratch[32];
    enum { N = VEC ? (int)Pack<X>::N : 1 };
    int64_t at = (int64_t)blockIdx.x * cols;
    float   most, sum;
    row_softmax<X, VEC, false>(x + at, cols, 0, scratch, &most, &sum);
    float log_sum = logf(sum);
    each_piece<X, VEC>(x + at, cols, [&](int64_t c, float *v) {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = LOG ? (v[i] - most) - log_sum : fast_exp(v[i] - most) / sum;
        store_piece<N>(y + at, c, v);
    });
}

/* dx = y (dy - sum of dy y); with LOG dx = dy - e^y sum of dy. */
template <typename X, bool VEC, bool LOG>
static __global__ void __launch_bounds__(ROW_THREADS) softmax_bwd_rows(const X *dy, TensorView y, TensorView dx, int64_t cols)
{
    __shared__ float scratch[32];
    enum { N = VEC ? (int)Pack<X>::N : 1 };
    int64_t at = (int64_t)blockIdx.x * cols;
    float   sum = 0;
    each_piece<X, VEC>(dy + at, cols, [&](int64_t c, float *v) {
#pragma unroll
        for (int i = 0; i < N; i++) sum += LOG ? v[i] : v[i] * elem_get(y.data, y.type.dtype, at + c + i);
    });
    sum = block_sum(sum, scratch);
    each_piece<X, VEC>(dy + at, cols, [&](int64_t c, float *v) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float own = elem_get(y.data, y.type.dtype, at + c + i);
            elem_set(dx.data, dx.type.dtype, at + c + i, LOG ? v[i] - fast_exp(own) * sum : own * (v[i] - sum));
        }
    });
}

template <bool LOG> static Status softmax_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *y = &args->out[0];
    int64_t           cols = type_cols(&x->type);
    unsigned          rows = (unsigned)type_rows(&x->type);
    cudaStream_t      stream = cuda_stream(args);
    CUDA_FLOAT(x->type.dtype, X, {
        CUDA_FLOAT(y->type.dtype, Y, {
            if (cols % 8 == 0 && is_aligned16(x->data) && is_aligned16(y->data))
                softmax_rows<X, Y, true, LOG><<<rows, ROW_THREADS, 0, stream>>>((const X *)x->data, (Y *)y->data, cols);
            else
                softmax_rows<X, Y, false, LOG><<<rows, ROW_THREADS, 0, stream>>>((const X *)x->data, (Y *)y->data, cols);
        });
    });
    return CUDA_LAUNCHED();
}

/* Of x in f16. */
template <bool LOG> static Status softmax_run_half(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *y = &args->out[0];
    const __half     *from = (const __half *)x->data;
    int64_t           cols = type_cols(&x->type);
    unsigned          rows = (unsigned)type_rows(&x->type);
    cudaStream_t      stream = cuda_stream(args);
    if (y->type.dtype == DT_F16)
        softmax_rows<__half, __half, false, LOG><<<rows, ROW_THREADS, 0, stream>>>(from, (__half *)y->data, cols);
    else
        CUDA_FLOAT(y->type.dtype, Y, { softmax_rows<__half, Y, false, LOG><<<rows, ROW_THREADS, 0, stream>>>(from, (Y *)y->data, cols); });
    return CUDA_LAUNCHED();
}

template <bool LOG> static Status softmax_bwd_run(const KernelArgs *args)
{
    const TensorView *dy = &args->in[0];
    int64_t           cols = type_cols(&dy->type);
    unsigned          rows = (unsigned)type_rows(&dy->type);
    cudaStream_t      stream = cuda_stream(args);
    CUDA_FLOAT(dy->type.dtype, X, {
        if (cols % Pack<X>::N == 0 && is_aligned16(dy->data))
            softmax_bwd_rows<X, true, LOG><<<rows, ROW_THREADS, 0, stream>>>((const X *)dy->data, args->in[1], args->out[0], cols);
        else
            softmax_bwd_rows<X, false, LOG><<<rows, ROW_THREADS, 0, stream>>>((const X *)dy->data, args->in[1], args->out[0], cols);
    });
    return CUDA_LAUNCHED();
}

#define OF_ANY \
    { \
        { \
            .out = 1u << 0, .dtypes = DT_SET_DECODE \
        } \
    }

CUDA_KERNELS(softmax, {.dtypes = DT_SET_FLOAT, .run = softmax_run<false>, .name = "rows"},
             {.dtypes = DT_SET(DT_F16), .run = softmax_run_half<false>, .name = "rows of f16", .except = OF_ANY})
CUDA_KERNELS(log_softmax, {.dtypes = DT_SET_FLOAT, .run = softmax_run<true>, .name = "rows"},
             {.dtypes = DT_SET(DT_F16), .run = softmax_run_half<true>, .name = "rows of f16", .except = OF_ANY})
CUDA_KERNELS(softmax_bwd, {.dtypes = DT_SET_FLOAT, .run = softmax_bwd_run<false>, .name = "rows"})
CUDA_KERNELS(log_softmax_bwd, {.dtypes = DT_SET_FLOAT, .run = softmax_bwd_run<true>, .name = "rows"})
