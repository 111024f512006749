/* The rotation of one head by one row of the rotary table, shared by rope and qkv_norm_rope. */
#pragma once

#include "ops/infer.h"

enum { ROPE_MAX_HEAD_DIM = 1024 };

/* Pairs (i, i + half) of x, times `scale` w if w is there, turn by their angle, or back; y, of dtype `to`, may be x. cosines: half of
 * them, then the sines. */
VEC_ROW void rope_turn(DType dtype, const void *x, DType to, void *y, const float *w, float scale, const float *cosines, int64_t half,
                       bool inverse)
{
    const float *sines = cosines + half;
    float        sign = inverse ? -1.0f : 1.0f;
    int64_t      i = 0;
    for (; i + 8 <= half; i += 8) {
        Vec8 c = vec8_load(cosines + i), s = sign * vec8_load(sines + i), first = vec8_get(dtype, x, i),
             second = vec8_get(dtype, x, i + half);
        if (w) {
            first = vec8_load(w + i) * (first * scale);
            second = vec8_load(w + i + half) * (second * scale);
        }
        if (to == DT_F32) {
            vec8_set(to, y, i, 8, first * c - second * s);
            vec8_set(to, y, i + half, 8, second * c + first * s);
        } else {
            vec8_set_bf16(y, i, first * c - second * s, i + half, second * c + first * s);
        }
    }
    for (; i < half; i++) {
        float c = cosines[i], s = sign * sines[i], first = vec_get(x, dtype, i), second = vec_get(x, dtype, i + half);
        if (w) {
            first = w[i] * (first * scale);
            second = w[i + half] * (second * scale);
        }
        vec_set(y, to, i, first * c - second * s);
        vec_set(y, to, i + half, second * c + first * s);
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
