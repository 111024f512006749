/* sum_squares on CUDA: thread blocks of fixed ranges; sums are fp32 within a thread, then double, added in order. */
#include "ops/rows.cuh"

enum { THREADS = 256 };

static __device__ __forceinline__ double block_sum_double(double x, double *scratch)
{
    scratch[threadIdx.x] = x;
    for (unsigned half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    }
    __syncthreads();
    return scratch[0];
}

template <typename T> static __global__ void sum_squares_blocks(const T *x, double *partial, int64_t count, int64_t each)
{
    enum { N = Pack<T>::N };
    __shared__ double scratch[THREADS];
    int64_t           begin = blockIdx.x * each, end = begin + each < count ? begin + each : count;
    float             sum = 0, v[N];
    for (int64_t i = begin + (int64_t)threadIdx.x * N; i + N <= end; i += (int64_t)THREADS * N) {
        load_pack(x + i, v);
#pragma unroll
        for (int k = 0; k < N; k++) sum += v[k] * v[k];
    }
    int64_t rest = end - (end - begin) % N + threadIdx.x; /* fewer than N elements are left at the end */
    if (rest < end) sum += to_float(x[rest]) * to_float(x[rest]);
    double total = block_sum_double((double)sum, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

static __global__ void sum_partials(const double *partial, int64_t count, float *out)
{
    __shared__ double scratch[THREADS];
    double            sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) sum += partial[i];
    sum = block_sum_double(sum, scratch);
    if (threadIdx.x == 0) *out = (float)sum;
}

static Status sum_squares_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0];
    int64_t           count = type_numel(&x->type), each = squares_of_block(count), blocks = cuda_div_up(count, each);
    double           *partial = (double *)args->workspace;
    CUDA_FLOAT(x->type.dtype, T,
               sum_squares_blocks<T><<<(unsigned)blocks, THREADS, 0, cuda_stream(args)>>>((const T *)x->data, partial, count, each));
    sum_partials<<<1, THREADS, 0, cuda_stream(args)>>>(partial, blocks, (float *)args->out[0].data);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(sum_squares, {.dtypes = DT_SET_FLOAT, .run = sum_squares_run, .name = "blocks", .workspace = cuda_planned_workspace})
