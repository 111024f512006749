/* The rotation of one head by one row of the rotary table, shared by rope and qkv_norm_rope. */
#pragma once

#include "ops/infer.h"

enum { ROPE_MAX_HEAD_DIM = 1024 };

/* Pairs (i, i + half) of x turn by their angle, or back; y may be x. cosines: half of them, then the sines. */
static inline void rope_turn(float *y, const float *x, const float *cosines, int64_t half, bool inverse)
{
    const float *sines = cosines + half;
    float        sign = inverse ? -1.0f : 1.0f;
    for (int64_t i = 0; i < half; i++) {
        float c = cosines[i], s = sign * sines[i], first = x[i], second = x[i + half];
        y[i] = first * c - second * s;
        y[i + half] = second * c + first * s;
    }
}

/* Every position has a row in the table. */
static inline Status rope_check_positions(const TensorView *positions, const TensorView *table)
{
    const int32_t *position = positions->data;
    int64_t        rows = type_numel(&positions->type), len = table->type.dim[0];
    for (int64_t i = 0; i < rows; i++)
        FAIL_IF(position[i] < 0 || position[i] >= len, ERR_INVALID, "position %d is outside the rotary table of %lld positions",
                position[i], (long long)len);
    return OK;
}
