/* Elements of a key/value cache: of the dtype that attention computes in, or e4m3 without a scale, encoded as by dtype_encode: values
 * beyond 448 become 448, infinity becomes NaN. bf16 and f16 hold each e4m3 value exactly, so products have the same bits as over a bf16 or
 * f16 cache of these values. */
#pragma once

#include "base/small_float.h"
#include "device/cuda/fp8.cuh"
#include "ops/mma.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
#define HAS_FP8 1 /* there are conversion instructions; the software path gives the same codes, but compiles for many minutes */
#else
#define HAS_FP8 0
#endif

/* Elements of C in a chunk of 16 bytes. */
template <typename C> struct ChunkOf {
    enum { N = 16 / (int)sizeof(C) };
};

/* Decodes four codes, the first in the lowest byte. */
static __device__ __forceinline__ void e4m3_floats(uint32_t codes, float (&x)[4])
{
#if !HAS_FP8
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = small_decode(small_e4m3(), codes >> 8 * i & 0xFF);
#else
    float2 low = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)codes, __NV_E4M3)));
    float2 high = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes >> 16), __NV_E4M3)));
    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
#endif
}

/* Decodes four codes 0 1 2 3 to T in pairs: (0, 1), then (2, 3). */
template <typename T> static __device__ __forceinline__ uint2 e4m3_pairs(uint32_t codes)
{
    float x[4];
    e4m3_floats(codes, x);
    return make_uint2(pair_of<T>(x[0], x[1]), pair_of<T>(x[2], x[3]));
}

/* Decodes four codes 0 1 2 3 to T in pairs: (0, 2), then (1, 3). */
template <typename T> static __device__ __forceinline__ uint2 e4m3_crossed(uint32_t codes)
{
    float x[4];
    e4m3_floats(codes, x);
    return make_uint2(pair_of<T>(x[0], x[2]), pair_of<T>(x[1], x[3]));
}

static __device__ __forceinline__ uint32_t e4m3_encode(const float *x)
{
    uint32_t codes = 0;
#if !HAS_FP8
#pragma unroll
    for (int i = 0; i < 4; i++) codes |= small_nearest(small_e4m3(), x[i]) << 8 * i;
#else
    float finite[4];
#pragma unroll
    for (int i = 0; i < 4; i++) finite[i] = fabsf(x[i]) == INFINITY ? NAN : x[i];
    codes = fp8_encode4(finite, DT_E4M3);
#endif
    return codes;
}

/* Reads ChunkOf<C>::N elements at p and encodes them as the cache stores them. */
template <typename C, typename T> static __device__ __forceinline__ uint4 cached_chunk(const T *p)
{
    if constexpr (sizeof(C) == sizeof(T)) {
        return *(const uint4 *)p;
    } else {
        float x[16];
        load_n<16>(p, x);
        return make_uint4(e4m3_encode(x), e4m3_encode(x + 4), e4m3_encode(x + 8), e4m3_encode(x + 12));
    }
}

/* Decodes a chunk of a cache to T, and returns the i-th 16 bytes of the decoded values. */
template <typename C, typename T> static __device__ __forceinline__ uint4 chunk_numbers(const uint4 &chunk, int i)
{
    if constexpr (sizeof(C) == sizeof(T)) {
        return chunk;
    } else {
        uint2 low = e4m3_pairs<T>(i ? chunk.z : chunk.x), high = e4m3_pairs<T>(i ? chunk.w : chunk.y);
        return make_uint4(low.x, low.y, high.x, high.y);
    }
}

/* Writes the new tokens' keys into their cells of the cache a->k (attention_cached.cu). */
Status attention_append_keys(const AttentionDims *a, const Heads *k, cudaStream_t stream);
