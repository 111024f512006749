/* add: c = a + b, 16 bytes a thread and turn. */
#include "device/cuda/vec.cuh"

enum { THREADS = 256 };

/* `packs` whole packs of T; c may be a's or b's memory. */
template <typename T> static __global__ void add_packs(const T *a, const T *b, T *c, int64_t packs)
{
    enum { N = Pack<T>::N };
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < packs; i += (int64_t)gridDim.x * THREADS) {
        float x[N], y[N];
        load_pack(a + i * N, x);
        load_pack(b + i * N, y);
#pragma unroll
        for (int k = 0; k < N; k++) x[k] += y[k];
        store_pack(c + i * N, x);
    }
}

static __global__ void add_elements(TensorView a, TensorView b, TensorView c, int64_t begin, int64_t count)
{
    for (int64_t i = begin + (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        elem_set(c.data, c.type.dtype, i, elem_get(a.data, a.type.dtype, i) + elem_get(b.data, b.type.dtype, i));
}

static Status add_run(const KernelArgs *args)
{
    const TensorView *a = &args->in[0], *b = &args->in[1], *c = &args->out[0];
    int64_t           count = type_numel(&c->type), begin = 0;
    if (a->type.dtype == b->type.dtype && a->type.dtype == c->type.dtype) {
        CUDA_FLOAT(c->type.dtype, T, {
            int64_t packs = count / Pack<T>::N;
            begin = packs * Pack<T>::N;
            if (packs)
                add_packs<T><<<cuda_grid(packs, THREADS), THREADS, 0, cuda_stream(args)>>>((const T *)a->data, (const T *)b->data,
                                                                                           (T *)c->data, packs);
        });
    }
    if (begin < count) add_elements<<<cuda_grid(count - begin, THREADS), THREADS, 0, cuda_stream(args)>>>(*a, *b, *c, begin, count);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(add, {.dtypes = DT_SET_FLOAT, .run = add_run, .name = "packs"})
