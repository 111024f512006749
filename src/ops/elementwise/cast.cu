/* cast on CUDA: 8 elements per thread at a time, 16 bytes of bf16 or 32 of fp32. f16 is cast element by element, which happens just once
 * for weights. */
#include "device/cuda/vec_f16.cuh"

enum { THREADS = 256, N = 8 };

template <typename X, typename Y> static __global__ void cast_packs(const X *x, Y *y, int64_t packs)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < packs; i += (int64_t)gridDim.x * THREADS) {
        float v[N];
        load_n<N>(x + i * N, v);
        store_n<N>(y + i * N, v);
    }
}

static __global__ void cast_elements(TensorView x, TensorView y, int64_t begin, int64_t count)
{
    for (int64_t i = begin + (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        any_set(y.data, y.type.dtype, i, any_get(x.data, x.type.dtype, i));
}

/* For casts from or to i32. */
static __global__ void cast_whole(TensorView x, TensorView y, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        const int32_t *from = (const int32_t *)x.data;
        int32_t       *to = (int32_t *)y.data;
        if (x.type.dtype != DT_I32)
            to[i] = __float2int_rz(any_get(x.data, x.type.dtype, i)); /* saturates; NaN becomes 0 */
        else if (y.type.dtype != DT_I32)
            any_set(y.data, y.type.dtype, i, (float)from[i]);
        else
            to[i] = from[i];
    }
}

/* Packs need 16-byte alignment, which a part of a weight may not have. */
static bool has_packs(const TensorView *view)
{
    return (uintptr_t)view->data % 16 == 0 && view->type.dtype != DT_F16;
}

static Status cast_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *y = &args->out[0];
    int64_t           count = type_numel(&y->type), packs = has_packs(x) && has_packs(y) ? count / N : 0;
    if (x->type.dtype == DT_I32 || y->type.dtype == DT_I32) {
        cast_whole<<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>(*x, *y, count);
        return CUDA_LAUNCHED();
    }
    if (packs)
        CUDA_FLOAT(x->type.dtype, X, {
            CUDA_FLOAT(y->type.dtype, Y, {
                cast_packs<X, Y><<<cuda_grid(packs, THREADS), THREADS, 0, cuda_stream(args)>>>((const X *)x->data, (Y *)y->data, packs);
            });
        });
    if (packs * N < count)
        cast_elements<<<cuda_grid(count - packs * N, THREADS), THREADS, 0, cuda_stream(args)>>>(*x, *y, packs * N, count);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(cast, {.dtypes = DT_SET_DECODE | DT_SET(DT_I32), .run = cast_run, .name = "packs"})
