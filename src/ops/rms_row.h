/* The row arithmetic of rms_norm, shared by the ops that contain one, so that they agree to the last bit.
 * Statistics and products are fp32 whatever the storage; Hugging Face rounds x rstd to bf16 before it multiplies by w,
 * we round once. */
#pragma once

#include "ops/fp8_rows.h"

static inline float rms_rstd(float sum_squares, int64_t cols, double eps)
{
    return 1.0f / sqrtf(sum_squares / (float)cols + (float)eps);
}

/* y = w (x rstd); y may be x. */
static inline void rms_scale(float *y, const float *x, const float *w, float rstd, int64_t count)
{
    for (int64_t i = 0; i < count; i++) y[i] = w[i] * (x[i] * rstd);
}

/* dx = rstd dy w - pull x, where pull = rstd^3 / C sum(dy w x); dx may be dy. */
static inline float rms_pull(float rstd, float dot, int64_t cols)
{
    return rstd * rstd * rstd * dot / (float)cols;
}
static inline void rms_dx(float *dx, const float *dy, const float *x, const float *w, float rstd, float pull, int64_t count)
{
    for (int64_t i = 0; i < count; i++) dx[i] = dy[i] * w[i] * rstd - x[i] * pull;
}

/* dw += dy (x rstd) */
static inline void rms_dw(float *dw, const float *dy, const float *x, float rstd, int64_t count)
{
    for (int64_t i = 0; i < count; i++) dw[i] += dy[i] * (x[i] * rstd);
}

/* Columns [c, c + n) of w + offset; scratch (n). */
static inline const float *rms_weights(const TensorView *w, double offset, int64_t c, int64_t n, float *scratch)
{
    const float *row = tile_load(w, c, n, scratch);
    if (offset == 0) return row;
    for (int64_t i = 0; i < n; i++) scratch[i] = row[i] + (float)offset;
    return scratch;
}

/* One row of a tensor: elements [at, at + cols) of x to the same of y (data NULL: not wanted) and to their codes; returns rstd. */
static inline float rms_norm_row(const TensorView *y, RowCodes *codes, const TensorView *x, const TensorView *w, const RmsNormAttrs *attrs,
                                 int64_t at, int64_t x_at, int64_t cols)
{
    float scratch_x[TILE], scratch_w[TILE], scratch_y[TILE], sum = 0;
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *row = tile_load(x, x_at + c, n, scratch_x);
        sum += vec_dot(row, row, n);
    }
    float rstd = rms_rstd(sum, cols, attrs->eps);
    for (int64_t c = 0; (y->data || row_codes_wanted(codes)) && c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *row = cols <= TILE && x->type.dtype != DT_F32 ? scratch_x : tile_load(x, x_at + c, n, scratch_x);
        float       *result = y->data ? tile_result(y, at + c, scratch_y) : scratch_y;
        rms_scale(result, row, rms_weights(w, attrs->offset, c, n, scratch_w), rstd, n);
        row_codes_store(codes, at / cols, c, result, n);
        if (y->data) tile_store(y, at + c, result, n);
    }
    return rstd;
}
