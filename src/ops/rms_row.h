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
VEC_ROW void rms_scale(DType dtype, void *y, const void *x, const float *w, float rstd, int64_t count)
{
    VEC_EACH(dtype, y, count, i, n, vec8_some(DT_F32, w, i, n) * (vec8_some(dtype, x, i, n) * rstd));
}

/* dx = rstd dy w - pull x, where pull = rstd^3 / C sum(dy w x); dx may be dy. */
static inline float rms_pull(float rstd, float dot, int64_t cols)
{
    return rstd * rstd * rstd * dot / (float)cols;
}
VEC_ROW void rms_dx(DType dtype, void *dx, const void *dy, const void *x, const float *w, float rstd, float pull, int64_t count)
{
    VEC_EACH(dtype, dx, count, i, n, vec8_some(dtype, dy, i, n) * vec8_some(DT_F32, w, i, n) * rstd - vec8_some(dtype, x, i, n) * pull);
}

/* The same, added to what dx is. */
VEC_ROW void rms_dx_add(DType dtype, void *dx, const void *dy, const void *x, const float *w, float rstd, float pull, int64_t count)
{
    VEC_EACH(dtype, dx, count, i, n,
             vec8_some(dtype, dx, i, n) +
                 (vec8_some(dtype, dy, i, n) * vec8_some(DT_F32, w, i, n) * rstd - vec8_some(dtype, x, i, n) * pull));
}

/* dw += dy (x rstd) */
VEC_ROW void rms_dw(DType dtype, float *dw, const void *dy, const void *x, float rstd, int64_t count)
{
    VEC_EACH(DT_F32, dw, count, i, n, vec8_some(DT_F32, dw, i, n) + vec8_some(dtype, dy, i, n) * (vec8_some(dtype, x, i, n) * rstd));
}

/* Columns [c, c + n) of w + offset; scratch (n). */
static inline const float *rms_weights(const TensorView *w, double offset, int64_t c, int64_t n, float *scratch)
{
    const float *row = tile_load(w, c, n, scratch);
    if (offset == 0) return row;
    for (int64_t i = 0; i < n; i++) scratch[i] = row[i] + (float)offset;
    return scratch;
}

/* Rows that are normed together: the square roots and divisions of one don't wait for those of another. */
enum { RMS_ROWS = 4 };

/* `rows` rows of a tensor, at most RMS_ROWS: elements from x_at on of x to those from `at` on of y (data NULL: not wanted) and to their
 * codes, and their rstd. */
static inline void rms_norm_rows(const TensorView *y, RowCodes *codes, const TensorView *x, const TensorView *w, const RmsNormAttrs *attrs,
                                 int64_t at, int64_t x_at, int64_t rows, int64_t cols, float *rstd)
{
    float scratch_x[TILE], scratch_w[TILE], scratch_y[TILE];
    DType dtype = row_codes_wanted(codes) ? DT_F32 : x->type.dtype;
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t c = 0; c < cols; c += TILE)
            sum += VEC_OF(x->type.dtype, vec_row_squares, vec_at(x->data, x->type.dtype, x_at + r * cols + c), min_i64(TILE, cols - c));
        rstd[r] = rms_rstd(sum, cols, attrs->eps);
    }
    for (int64_t c = 0; (y->data || row_codes_wanted(codes)) && c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *weights = rms_weights(w, attrs->offset, c, n, scratch_w);
        for (int64_t r = 0; r < rows; r++) {
            int64_t     to = at + r * cols + c;
            const void *row = tile_in(x, dtype, x_at + r * cols + c, n, scratch_x);
            void       *result = y->data ? tile_out(y, dtype, to, scratch_y) : scratch_y;
            VEC_OF(dtype, rms_scale, result, row, weights, rstd[r], n);
            row_codes_store(codes, to / cols, c, result, n);
            if (y->data) tile_done(y, dtype, to, result, n);
        }
    }
}
