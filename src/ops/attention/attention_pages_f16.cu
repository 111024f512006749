/* Attention over a key/value cache in pages for f16: attention_pages.cu compiled for other numbers of 16 bits. Moving them is the same,
 * so that `bf16` stands for them too; multiplying them and rounding to them are said here. */
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

#define PAGES_CAPS false
#define MMA_INSTRUCTION MMA_INSTRUCTION_F16
#define __float2bfloat16_rn round_f16
#define __floats2bfloat162_rn round_two_f16
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_pages_f16.cuh"

#define attention_pages_wgmma_serves(a) false /* of bf16 alone */
#define attention_pages_prefill attention_pages_prefill_f16
#define attention_pages_decode attention_pages_decode_f16
#include "ops/attention/attention_pages.cu"
