/* Elementwise ops of one or two tensors: 16 bytes a thread at a time. */
#pragma once

#include "device/cuda/vec_f16.cuh"
#include "ops/rows.cuh"

#include <type_traits>

enum { MAP_THREADS = 256 };

/* A function of this type computes several elements faster than one by one: each<T>(a, b) is each_of. */
struct ManyAtOnce {
};

/* a[i] = f(a[i], b[i]), which the caller rounds to T. The operands are T's. */
template <typename T, int N, typename F> static __device__ __forceinline__ void each_of(float (&a)[N], const float (&b)[N], F f)
{
    if constexpr (std::is_base_of<ManyAtOnce, F>::value) {
        F::template each<T>(a, b);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) a[i] = f(a[i], b[i]);
    }
}

/* `packs` whole packs of T; y may be a's or b's memory. b NULL: f's second argument is 0. */
template <typename T, typename F> static __global__ void map_packs(const T *a, const T *b, T *y, int64_t packs, F f)
{
    enum { N = Pack<T>::N };
    for (int64_t i = (int64_t)blockIdx.x * MAP_THREADS + threadIdx.x; i < packs; i += (int64_t)gridDim.x * MAP_THREADS) {
        float u[N], v[N] = {};
        load_pack(a + i * N, u);
        if (b) load_pack(b + i * N, v);
        each_of<T>(u, v, f);
        store_pack(y + i * N, u);
    }
}

template <typename F> static __global__ void map_elements(TensorView a, TensorView b, TensorView y, int64_t begin, int64_t count, F f)
{
    for (int64_t i = begin + (int64_t)blockIdx.x * MAP_THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * MAP_THREADS)
        any_set(y.data, y.type.dtype, i, f(any_get(a.data, a.type.dtype, i), b.data ? any_get(b.data, b.type.dtype, i) : 0.0f));
}

/* out[0] = f(in[0], in[1]) for each element; without a second input f's second argument is 0. F: __device__ float operator()(float,
 * float). */
template <typename F> static Status map_run(const KernelArgs *args, F f)
{
    TensorView        none = {};
    const TensorView *a = &args->in[0], *b = args->num_in > 1 ? &args->in[1] : &none, *y = &args->out[0], *views[] = {a, b, y};
    int64_t           count = type_numel(&y->type), begin = 0;
    if (views_are(y->type.dtype, views, 3)) {
        CUDA_FLOAT_ANY(y->type.dtype, T, {
            int64_t packs = count / Pack<T>::N;
            begin = packs * Pack<T>::N;
            if (packs)
                map_packs<T><<<cuda_grid(packs, MAP_THREADS), MAP_THREADS, 0, cuda_stream(args)>>>((const T *)a->data, (const T *)b->data,
                                                                                                   (T *)y->data, packs, f);
        });
    }
    if (begin < count)
        map_elements<<<cuda_grid(count - begin, MAP_THREADS), MAP_THREADS, 0, cuda_stream(args)>>>(*a, *b, *y, begin, count, f);
    return CUDA_LAUNCHED();
}
