/* Conversion to and from FP8 codes on the device. GPUs from sm_89 on have instructions for it; older ones get the same bits by software. */
#pragma once

#include "device/cuda/vec.cuh"

#include <cuda_fp8.h>

static __device__ __forceinline__ __nv_fp8_interpretation_t fp8_format(int dtype)
{
    return dtype == DT_E4M3 ? __NV_E4M3 : __NV_E5M2;
}

static __device__ __forceinline__ float fp8_get(const void *p, int dtype, int64_t i)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(((const uint8_t *)p)[i], fp8_format(dtype))));
}

/* Rounds to nearest, ties to even; a value out of range becomes the largest finite one. */
static __device__ __forceinline__ uint8_t fp8_encode(float x, int dtype)
{
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, fp8_format(dtype));
}

/* Four codes in one word, the first in the lowest byte. */
static __device__ __forceinline__ uint32_t fp8_encode4(const float *x, int dtype)
{
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, fp8_format(dtype));
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, fp8_format(dtype));
    return low | high << 16;
}
