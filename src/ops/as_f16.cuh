/* For a file that compiles another one, which multiplies bf16 by mma.cuh, for f16. Moving numbers of 16 bits is the same, so that `bf16` stands
 * for them there; multiplying them and rounding to them are said here. It comes before all other headers. */
#pragma once

#include "device/cuda/vec_f16.cuh"
#include "ops/mma_f16.cuh"

static __device__ __forceinline__ __nv_bfloat16 round_f16(float x)
{
    return __ushort_as_bfloat16(__half_as_ushort(__float2half_rn(x)));
}

static __device__ __forceinline__ __nv_bfloat162 round_two_f16(float low, float high)
{
    return __halves2bfloat162(round_f16(low), round_f16(high));
}

#define MMA_INSTRUCTION MMA_INSTRUCTION_F16
#define __float2bfloat16_rn round_f16
#define __floats2bfloat162_rn round_two_f16
