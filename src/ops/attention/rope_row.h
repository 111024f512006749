/* The rotation of one head by one row of the rotary table, shared by rope and qkv_norm_rope. */
#pragma once

#include "ops/infer.h"

enum { ROPE_MAX_HEAD_DIM = 1024 };

/* Rotates a head's pair (i, i + half) by its angle; with `norm` x is multiplied by scale and w first. */
VEC_ROW void rope_pair(DType dtype, DType to, bool norm, const void *x, void *y, const float *w, float scale, float cosine, float sine,
                       int64_t i, int64_t half)
{
    float first = vec_get(x, dtype, i), second = vec_get(x, dtype, i + half);
    if (norm) {
        first = w[i] * (first * scale);
        second = w[i + half] * (second * scale);
    }
    vec_set(y, to, i, fmaf(first, cosine, -(second * sine)));
    vec_set(y, to, i + half, fmaf(second, cosine, first * sine));
}

/* Rotates the pairs of `heads` contiguous heads; with `inverse`, in the other direction. With `norm`, x is multiplied by rstd[head] and w
 * first. y, of dtype `to`, may be x. cosines: `half` cosines, then `half` sines. If head_dim is a compile-time constant the loops unroll,
 * which is worth a third of the time. */
VEC_ROW void rope_heads(DType dtype, DType to, bool inverse, bool norm, const void *x, void *y, const float *w, const float *rstd,
                        int64_t heads, int64_t head_dim, const float *cosines, int64_t half)
{
    const float *sines = cosines + half;
    float        sign = inverse ? -1.0f : 1.0f;
    for (int64_t h = 0; h < heads; h++, x = vec_at(x, dtype, head_dim), y = vec_at_mut(y, to, head_dim)) {
        float   scale = norm ? rstd[h] : 1;
        int64_t i = 0;
        if (dtype == DT_F32 && to == DT_F32 && norm) { /* in vectors as wide as AVX-512's, which gain too little without a norm */
            VEC_LOOP
            for (; i < half; i++) rope_pair(dtype, to, norm, x, y, w, scale, cosines[i], sign * sines[i], i, half);
            continue;
        }
        for (; i + 8 <= half; i += 8) {
            Vec8 c = vec8_load(cosines + i), s = sign * vec8_load(sines + i), first = vec8_get(dtype, x, i),
                 second = vec8_get(dtype, x, i + half);
            if (norm) {
                first = vec8_load(w + i) * (first * scale);
                second = vec8_load(w + i + half) * (second * scale);
            }
            if (to == DT_F32) {
                vec8_set(to, y, i, 8, vec8_fms(first, c, second * s));
                vec8_set(to, y, i + half, 8, vec8_fma(second, c, first * s));
            } else {
                vec8_set_narrow(to, y, i, vec8_fms(first, c, second * s), i + half, vec8_fma(second, c, first * s));
            }
        }
        for (; i < half; i++) rope_pair(dtype, to, norm, x, y, w, scale, cosines[i], sign * sines[i], i, half);
    }
}

/* Calls `row` through `of`, which is VEC_OF or VEC_OF_ANY. Its second argument is head_dim, a compile-time constant if it is 64 or 128. */
#define ROPE_OF(of, head_dim, row, dtype, ...) \
    do { \
        if ((head_dim) == 64) \
            of(dtype, row, 64, __VA_ARGS__); \
        else if ((head_dim) == 128) \
            of(dtype, row, 128, __VA_ARGS__); \
        else \
            of(dtype, row, head_dim, __VA_ARGS__); \
    } while (0)

/* Checks that every position has a row in the table. */
static inline Status rope_check_positions(const TensorView *positions, const TensorView *table)
{
    const int32_t *position = positions->data;
    int64_t        rows = type_numel(&positions->type), len = table->type.dim[0];
    int64_t        outside = 0;
    for (int64_t i = 0; i < rows; i++) outside += position[i] < 0 || position[i] >= len;
    for (int64_t i = 0; outside && i < rows; i++)
        FAIL_IF(position[i] < 0 || position[i] >= len, ERR_INVALID, "position %d is outside the rotary table of %lld positions",
                position[i], (long long)len);
    return OK;
}
