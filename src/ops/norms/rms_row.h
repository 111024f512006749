/* The row arithmetic of rms_norm, shared by the ops that contain one, so that they agree to the last bit.
 * Statistics and products are fp32 whatever the storage; Hugging Face rounds x rstd to bf16 before it multiplies by w,
 * we round once. */
#pragma once

#include "ops/lowbit/fp8_rows.h"

static inline float rms_rstd(float sum_squares, int64_t cols, double eps)
{
    return 1.0f / sqrtf(sum_squares / (float)cols + (float)eps);
}

/* y = w (x rstd); y may be x. */
VEC_ROW void rms_scale(DType dtype, void *y, const void *x, const float *w, float rstd, int64_t count)
{
    const float *floats = x;
    if (dtype == DT_F32)
        VEC_FLOATS(count, i, ((float *)y)[i] = w[i] * (floats[i] * rstd););
    else
        VEC_EACH(dtype, y, count, i, n, vec8_some(DT_F32, w, i, n) * (vec8_some(dtype, x, i, n) * rstd));
}

/* pull of dx = rstd dy w - pull x, where it is rstd^3 / C sum(dy w x) */
static inline float rms_pull(float rstd, float dot, int64_t cols)
{
    return rstd * rstd * rstd * dot / (float)cols;
}

/* A norm's row backward. adds: dx is added to what is there; sums: so is dy (x rstd) to dw. */
typedef struct RmsBwd {
    const void  *dy, *x;
    const float *w;
    float       *dw, rstd, pull;
    bool         adds, sums;
} RmsBwd;

/* Elements [i, i + n) of dw and, to be stored, dx; dy is of dy_dtype. */
VEC_ROW Vec8 rms_bwd_some(DType dy_dtype, DType dtype, const void *dx, const RmsBwd *row, int64_t i, int64_t n)
{
    Vec8 dy = vec8_held(vec8_some(dy_dtype, row->dy, i, n)), x = vec8_held(vec8_some(dtype, row->x, i, n));
    Vec8 result = vec8_fms(dy * vec8_some(DT_F32, row->w, i, n), vec8_all(row->rstd), x * row->pull);
    if (row->sums) vec8_set(DT_F32, row->dw, i, n, vec8_fma(dy, x * row->rstd, vec8_some(DT_F32, row->dw, i, n)));
    return row->adds ? vec8_some(dtype, dx, i, n) + result : result;
}

/* dx may be what is read of the row. */
VEC_ROW void rms_bwd_row(DType dy_dtype, DType dtype, void *dx, const RmsBwd *row, int64_t count)
{
    VEC_EACH(dtype, dx, count, i, n, rms_bwd_some(dy_dtype, dtype, dx, row, i, n));
}

/* The same of floats, to the bit, in vectors as wide as the task is compiled for: faster with AVX-512, slower with AVX2. */
VEC_ROW void rms_bwd_floats(float *dx, const RmsBwd *row, int64_t count)
{
    const float *dys = row->dy, *xs = row->x;
    VEC_FLOATS(count, i, {
        float dy = dys[i], x = xs[i], result = fmaf(dy * row->w[i], row->rstd, -(x * row->pull));
        if (row->sums) row->dw[i] = fmaf(dy, x * row->rstd, row->dw[i]);
        dx[i] = row->adds ? dx[i] + result : result;
    });
}

/* Columns [c, c + n) of w + offset; scratch (n). */
static inline const float *rms_weights(const TensorView *w, double offset, int64_t c, int64_t n, float *scratch)
{
    const float *row = tile_load(w, c, n, scratch);
    if (offset == 0) return row;
    for (int64_t i = 0; i < n; i++) scratch[i] = row[i] + (float)offset;
    return scratch;
}

/* Rows that are normed together: those of one don't wait for the square roots and divisions of another. Not so many that the second pass
 * over them finds them gone from the nearest cache. */
enum { RMS_ROWS = 8 };
static inline int64_t rms_rows(int64_t cols)
{
    return max_i64(1, min_i64(RMS_ROWS, 2 * TILE / max_i64(cols, 1)));
}

/* sum[r] += the squares of the first n elements of each of `rows` rows, `cols` apart. */
VEC_ROW void rms_squares(DType dtype, float *sum, const void *x, int64_t rows, int64_t cols, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) sum[r] += vec_row_squares(dtype, vec_at(x, dtype, r * cols), n);
}

VEC_ROW void rms_scale_rows(DType dtype, void *y, const void *x, const float *w, const float *rstd, int64_t rows, int64_t cols, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) rms_scale(dtype, vec_at_mut(y, dtype, r * cols), vec_at(x, dtype, r * cols), w, rstd[r], n);
}

/* `rows` rows of a tensor, at most RMS_ROWS: elements from x_at on of x to those from `at` on of y (data NULL: not wanted) and to their
 * codes, and their rstd. */
static inline void rms_norm_rows(const TensorView *y, RowCodes *codes, const TensorView *x, const TensorView *w, const RmsNormAttrs *attrs,
                                 int64_t at, int64_t x_at, int64_t rows, int64_t cols, float *rstd)
{
    float scratch_x[TILE], scratch_w[TILE], scratch_y[TILE], sum[RMS_ROWS] = {0};
    DType dtype = x->type.dtype;
    bool  coded = row_codes_wanted(codes);
    for (int64_t c = 0; c < cols; c += TILE)
        VEC_OF_ANY(dtype, rms_squares, sum, vec_at(x->data, dtype, x_at + c), rows, cols, min_i64(TILE, cols - c));
    for (int64_t r = 0; r < rows; r++) rstd[r] = rms_rstd(sum[r], cols, attrs->eps);
    for (int64_t c = 0; (y->data || coded) && c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *weights = rms_weights(w, attrs->offset, c, n, scratch_w);
        if (!coded) {
            VEC_OF_ANY(dtype, rms_scale_rows, vec_at_mut(y->data, dtype, at + c), vec_at(x->data, dtype, x_at + c), weights, rstd, rows,
                       cols, n);
            continue;
        }
        for (int64_t r = 0; r < rows; r++) {
            int64_t to = at + r * cols + c;
            float  *result = y->data ? tile_result(y, to, scratch_y) : scratch_y;
            rms_scale(DT_F32, result, tile_load(x, x_at + r * cols + c, n, scratch_x), weights, rstd[r], n);
            row_codes_store(codes, to / cols, c, result, n);
            if (y->data) tile_store(y, to, result, n);
        }
    }
}
