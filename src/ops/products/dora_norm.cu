/* dora_norm on CUDA: a block computes the norms of ROWS rows. A thread takes columns in steps of COLUMNS. It uses each element of a that it
 * loads for ROWS rows, and each factor for COLUMNS columns. The factors alpha b are in shared memory if they fit. Sums are fp32, in a fixed
 * order. */
#include "device/cuda/vec_f16.cuh"
#include "ops/attrs.h"
#include "ops/products/dora.h"

enum { THREADS = 256, ROWS = 8, COLUMNS = 4, MOST_SHARED_RANK = 1024 /* 32 KiB */ };

/* Elements of a dtype known at compile time, or of any dtype. */
template <typename T> struct Typed {
    const T *data;

    __device__ __forceinline__ float operator()(int64_t i) const
    {
        return to_float(data[i]);
    }
};

struct AnyType {
    const void *data;
    int         dtype;

    __device__ __forceinline__ float operator()(int64_t i) const
    {
        return any_get(data, dtype, i);
    }
};

/* factors: alpha b of this block's rows, rank by rank; NULL: alpha b is computed at each use. */
template <typename F>
static __device__ __forceinline__ void add_columns(F w, F a, const AnyType &b, const float *factors, float alpha, int64_t first, int rows,
                                                   int64_t at, int64_t cols, int64_t r, float (&squares)[ROWS])
{
    float v[ROWS][COLUMNS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            int64_t c = at + j * THREADS;
            v[i][j] = i < rows && c < cols ? w((first + i) * cols + c) : 0.0f;
        }
    for (int64_t k = 0; k < r; k++) {
        float x[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) x[j] = at + j * THREADS < cols ? a(k * cols + at + j * THREADS) : 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float factor = factors ? factors[k * ROWS + i] : i < rows ? alpha * b((first + i) * r + k) : 0.0f;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) v[i][j] += factor * x[j];
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) squares[i] += v[i][j] * v[i][j];
}

template <typename F>
static __global__ void __launch_bounds__(THREADS)
    dora_norm_rows(F w, F a, AnyType b, float alpha, float *out, int64_t all_rows, int64_t cols, int64_t r)
{
    extern __shared__ float factors[];
    __shared__ float        scratch[32];
    int64_t                 first = (int64_t)blockIdx.x * ROWS;
    int                     rows = all_rows - first < ROWS ? (int)(all_rows - first) : ROWS;
    bool                    is_shared = r <= MOST_SHARED_RANK;
    float                   squares[ROWS] = {};
    for (int64_t i = threadIdx.x; is_shared && i < r * ROWS; i += THREADS)
        factors[i] = i % ROWS < rows ? alpha * b((first + i % ROWS) * r + i / ROWS) : 0.0f;
    __syncthreads();
    for (int64_t at = threadIdx.x; at < cols; at += THREADS * COLUMNS)
        add_columns(w, a, b, is_shared ? factors : NULL, alpha, first, rows, at, cols, r, squares);
    for (int i = 0; i < ROWS; i++) {
        float sum = block_sum(squares[i], scratch);
        if (threadIdx.x == 0 && i < rows) out[first + i] = fmaxf(sqrtf(sum), DORA_LEAST_NORM);
    }
}

template <typename F> static void launch(const KernelArgs *args, F w, F a)
{
    const TensorType *type = &args->in[0].type;
    int64_t           r = args->in[1].type.dim[0];
    size_t            shared = r <= MOST_SHARED_RANK ? (size_t)(r * ROWS) * sizeof(float) : 0;
    AnyType           b = {args->in[2].data, args->in[2].type.dtype};
    dora_norm_rows<<<(unsigned)cuda_div_up(type->dim[0], ROWS), THREADS, shared, cuda_stream(args)>>>(
        w, a, b, (float)((const LinearAttrs *)args->attrs)->alpha, (float *)args->out[0].data, type->dim[0], type->dim[1], r);
}

static Status dora_norm_run(const KernelArgs *args)
{
    const TensorView *w = &args->in[0], *a = &args->in[1];
    if (w->type.dtype == DT_BF16 && a->type.dtype == DT_BF16)
        launch(args, Typed<__nv_bfloat16>{(const __nv_bfloat16 *)w->data}, Typed<__nv_bfloat16>{(const __nv_bfloat16 *)a->data});
    else if (w->type.dtype == DT_F32 && a->type.dtype == DT_F32)
        launch(args, Typed<float>{(const float *)w->data}, Typed<float>{(const float *)a->data});
    else
        launch(args, AnyType{w->data, w->type.dtype}, AnyType{a->data, a->type.dtype});
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(dora_norm, {.dtypes = DT_SET_DECODE, .run = dora_norm_run, .name = "rows"})
