/* The row arithmetic of rms_norm, shared by all ops that contain a norm, so that they agree to the last bit. Statistics and products are
 * fp32 whatever the storage. Hugging Face rounds x rstd to bf16 before it multiplies by w; we round once. */
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

/* pull in dx = rstd dy w - pull x: rstd^3 / C * dot, where dot = sum(dy w x) */
static inline float rms_pull(float rstd, float dot, int64_t cols)
{
    return rstd * rstd * rstd * dot / (float)cols;
}

/* Operands of one row's backward. adds: the result is added to dx; sums: dy (x rstd) is added to dw. */
typedef struct RmsBwd {
    const void  *dy, *x;
    const float *w;
    float       *dw, rstd, pull;
    bool         adds, sums;
} RmsBwd;

/* Adds dy (x rstd) to elements [i, i + n) of dw, if row->sums. Returns elements [i, i + n) of dx; the caller stores them. dy is of
 * dy_dtype. */
VEC_ROW Vec8 rms_bwd_some(DType dy_dtype, DType dtype, const void *dx, const RmsBwd *row, int64_t i, int64_t n)
{
    Vec8 dy = vec8_held(vec8_some(dy_dtype, row->dy, i, n)), x = vec8_held(vec8_some(dtype, row->x, i, n));
    Vec8 result = vec8_fms(dy * vec8_some(DT_F32, row->w, i, n), vec8_all(row->rstd), x * row->pull);
    if (row->sums) vec8_set(DT_F32, row->dw, i, n, vec8_fma(dy, x * row->rstd, vec8_some(DT_F32, row->dw, i, n)));
    return row->adds ? vec8_some(dtype, dx, i, n) + result : result;
}

/* Computes a row of dx; dx may be the memory of row->dy or row->x. */
VEC_ROW void rms_bwd_row(DType dy_dtype, DType dtype, void *dx, const RmsBwd *row, int64_t count)
{
    VEC_EACH(dtype, dx, count, i, n, rms_bwd_some(dy_dtype, dtype, dx, row, i, n));
}

/* As rms_bwd_row for floats, with the same bits, in vectors as wide as the task is compiled for: faster with AVX-512, slower with AVX2. */
VEC_ROW void rms_bwd_floats(float *dx, const RmsBwd *row, int64_t count)
{
    const float *dys = row->dy, *xs = row->x;
    VEC_FLOATS(count, i, {
        float dy = dys[i], x = xs[i], result = fmaf(dy * row->w[i], row->rstd, -(x * row->pull));
        if (row->sums) row->dw[i] = fmaf(dy, x * row->rstd, row->dw[i]);
        dx[i] = row->adds ? dx[i] + result : result;
    });
}

/* Elements [c, c + n) of w + offset; scratch (n). */
static inline const float *rms_weights(const TensorView *w, double offset, int64_t c, int64_t n, float *scratch)
{
    const float *row = tile_load(w, c, n, scratch);
    if (offset == 0) return row;
    for (int64_t i = 0; i < n; i++) scratch[i] = row[i] + (float)offset;
    return scratch;
}

/* Rows that are normed together, so that the square root and division of one don't hold up the others. Few enough that the second pass
 * still finds them in the L1 cache. */
enum { RMS_ROWS = 8 };
static inline int64_t rms_rows(int64_t cols)
{
    return max_i64(1, min_i64(RMS_ROWS, 2 * TILE / max_i64(cols, 1)));
}

/* sum[r] += the sum of squares of row r's first n elements; rows are `cols` elements apart. */
VEC_ROW void rms_squares(DType dtype, float *sum, const void *x, int64_t rows, int64_t cols, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) sum[r] += vec_row_squares(dtype, vec_at(x, dtype, r * cols), n);
}

VEC_ROW void rms_scale_rows(DType dtype, void *y, const void *x, const float *w, const float *rstd, int64_t rows, int64_t cols, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) rms_scale(dtype, vec_at_mut(y, dtype, r * cols), vec_at(x, dtype, r * cols), w, rstd[r], n);
}

/* Normalizes `rows` rows, at most RMS_ROWS. Reads x from element x_at on; writes y (data NULL: not wanted) and its codes from element `at`
 * on, and each row's rstd. */
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
