/* Loads, stores and sums that kernels share. Arithmetic is fp32; T is float or __nv_bfloat16. */
#pragma once

#include "device/cuda/kernel.h"

#include <cuda_bf16.h>

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}
static __device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
template <typename T> static __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float              from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* 16 bytes of elements: 4 or 8. */
template <typename T> struct Pack {
    enum { N = 16 / sizeof(T) };
    union {
        uint4 words;
        T     v[N];
    };
    __device__ __forceinline__ Pack() : words() {}
};

/* Loads 16 bytes as floats; p is 16-byte aligned. */
template <typename T> static __device__ __forceinline__ void load_pack(const T *p, float *out)
{
    Pack<T> pack;
    pack.words = *reinterpret_cast<const uint4 *>(p);
#pragma unroll
    for (int i = 0; i < Pack<T>::N; i++) out[i] = to_float(pack.v[i]);
}

/* Two elements in one word, converted to bf16. */
static __device__ __forceinline__ uint32_t bf16_pair(const float *in)
{
    union {
        __nv_bfloat162 pair;
        uint32_t       word;
    } both = {__floats2bfloat162_rn(in[0], in[1])};
    return both.word;
}

template <typename T> static __device__ __forceinline__ Pack<T> to_pack(const float *in);
template <> __device__ __forceinline__ Pack<float> to_pack<float>(const float *in)
{
    Pack<float> pack;
    pack.words = make_uint4(__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]), __float_as_uint(in[3]));
    return pack;
}
template <> __device__ __forceinline__ Pack<__nv_bfloat16> to_pack<__nv_bfloat16>(const float *in)
{
    Pack<__nv_bfloat16> pack;
    pack.words = make_uint4(bf16_pair(in), bf16_pair(in + 2), bf16_pair(in + 4), bf16_pair(in + 6));
    return pack;
}

template <typename T> static __device__ __forceinline__ void store_pack(T *p, const float *in)
{
    *reinterpret_cast<uint4 *>(p) = to_pack<T>(in).words;
}

/* Loads or stores N elements of T. For kernels that pair two types: e.g. 8 floats and 8 bf16. p is aligned to min(16, N * sizeof(T)). */
template <int N, typename T> static __device__ __forceinline__ void load_n(const T *p, float *out)
{
#pragma unroll
    for (int i = 0; i < N; i += Pack<T>::N) load_pack(p + i, out + i);
}

template <int N, typename T> static __device__ __forceinline__ void store_n(T *p, const float *in)
{
#pragma unroll
    for (int i = 0; i < N; i += Pack<T>::N) store_pack(p + i, in + i);
}

/* load_pack from p of any alignment; wide: p is 16-byte aligned. */
template <typename T> static __device__ __forceinline__ void load_pack_any(const T *p, bool wide, float *out)
{
    if (wide) {
        load_pack(p, out);
    } else {
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) out[i] = to_float(p[i]);
    }
}

/* 8 elements in their storage type. Loading them early and converting late saves registers. */
template <typename T> struct Eight {
    Pack<T> part[8 / Pack<T>::N];

    /* Loads the first `count` elements, the rest stays 0. wide: p is 16-byte aligned, and count is at least 8 or at most 0. */
    __device__ __forceinline__ void load(const T *p, bool wide, int64_t count)
    {
        if (wide && count > 0) {
#pragma unroll
            for (int i = 0; i < 8 / Pack<T>::N; i++) part[i].words = reinterpret_cast<const uint4 *>(p)[i];
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (k < count) part[k / Pack<T>::N].v[k % Pack<T>::N] = p[k];
        }
    }
    __device__ __forceinline__ float get(int k) const
    {
        return to_float(part[k / Pack<T>::N].v[k % Pack<T>::N]);
    }
};

/* Stores 8 elements; wide and count as in Eight::load. */
template <typename T> static __device__ __forceinline__ void store_eight(T *p, const float *in, bool wide, int64_t count)
{
    if (wide && count > 0) {
        store_n<8>(p, in);
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (k < count) p[k] = from_float<T>(in[k]);
    }
}

/* Element i of a tensor whose dtype is known only at run time, f32 or bf16: for small operands and general rows. */
static __device__ __forceinline__ float elem_get(const void *p, int dtype, int64_t i)
{
    return dtype == DT_BF16 ? to_float(((const __nv_bfloat16 *)p)[i]) : ((const float *)p)[i];
}

static __device__ __forceinline__ void elem_set(void *p, int dtype, int64_t i, float value)
{
    if (dtype == DT_BF16)
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(value);
    else
        ((float *)p)[i] = value;
}

/* ---- sums in a fixed order; every thread gets the result ---- */

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
    return x;
}

/* Sum over all threads of the block, a multiple of 32, which must all call it. scratch: 32 floats of shared memory, reusable on return. */
static __device__ __forceinline__ float block_sum(float x, float *scratch)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_sum(lane < (int)(blockDim.x >> 5) ? scratch[lane] : 0.0f);
    __syncthreads();
    return x;
}

static __device__ __forceinline__ float block_max(float x, float *scratch)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    x = warp_max(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_max(lane < (int)(blockDim.x >> 5) ? scratch[lane] : -INFINITY);
    __syncthreads();
    return x;
}

static inline bool is_aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}
