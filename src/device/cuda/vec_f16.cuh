/* vec.cuh with f16 too, for ops that are used in decoding, scoring and evaluation. */
#pragma once

#include "device/cuda/vec.cuh"

#include <cuda_fp16.h>

static __device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}
template <> __device__ __forceinline__ __half from_float<__half>(float x)
{
    return __float2half_rn(x);
}

/* Two elements in one word, converted to f16. */
static __device__ __forceinline__ uint32_t f16_pair(const float *in)
{
    union {
        __half2  pair;
        uint32_t word;
    } both = {__floats2half2_rn(in[0], in[1])};
    return both.word;
}

template <typename T> static __device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    const float both[2] = {low, high};
    return bf16_pair(both);
}
template <> __device__ __forceinline__ uint32_t pair_of<__half>(float low, float high)
{
    const float both[2] = {low, high};
    return f16_pair(both);
}

template <> __device__ __forceinline__ Pack<__half> to_pack<__half>(const float *in)
{
    Pack<__half> pack;
    pack.words = make_uint4(f16_pair(in), f16_pair(in + 2), f16_pair(in + 4), f16_pair(in + 6));
    return pack;
}

/* elem_get and elem_set with f16 too. */
static __device__ __forceinline__ float any_get(const void *p, int dtype, int64_t i)
{
    return dtype == DT_F16 ? to_float(((const __half *)p)[i]) : elem_get(p, dtype, i);
}

static __device__ __forceinline__ void any_set(void *p, int dtype, int64_t i, float value)
{
    if (dtype == DT_F16)
        ((__half *)p)[i] = __float2half_rn(value);
    else
        elem_set(p, dtype, i, value);
}

/* Element i of a tensor that is f32 or of type T. */
template <typename T> static __device__ __forceinline__ float get_of(const void *p, int dtype, int64_t i)
{
    return dtype == DT_F32 ? ((const float *)p)[i] : to_float(((const T *)p)[i]);
}

template <typename T> static __device__ __forceinline__ void set_of(void *p, int dtype, int64_t i, float value)
{
    if (dtype == DT_F32)
        ((float *)p)[i] = value;
    else
        ((T *)p)[i] = from_float<T>(value);
}
