/* Shared by optimizer steps on CUDA. */
#pragma once

#include "ops/attrs.h"
#include "ops/random.h"
#include "ops/rows.cuh"

/* Rounds to a bf16 value, up or down by the low 16 random bits. */
static __device__ __forceinline__ float bf16_random(float value, uint32_t random)
{
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7F800000u) == 0x7F800000u) return value; /* inf and NaN stay, as the later store rounds to nearest */
    return __uint_as_float((bits + (random & 0xFFFFu)) & 0xFFFF0000u);
}

/* The random key of a segment in this step. */
static __device__ __forceinline__ uint64_t update_key(const int64_t *step, int64_t segment_key)
{
    return random_key(step[STEP_SEED], step[STEP_INDEX], RANDOM_ADAMW, segment_key);
}

static __device__ __forceinline__ bool step_applies(const float *norm2, const float *loss)
{
    return isfinite(*norm2) && isfinite(*loss);
}
