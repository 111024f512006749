/* Rows as e4m3 codes with a scale for each FP8_TILE numbers of a row, on the CPU: of fp8_rows_quantise, and of ops that make codes of a
 * result beside it (OpCodes). */
#pragma once

#include "ops/fp8_tiles.h"
#include "ops/infer.h"

typedef struct RowCodes {
    uint8_t *codes;
    float   *scales;     /* both NULL: not wanted */
    int64_t  rows, cols; /* of what is quantised */
    DType    dtype;      /* what the numbers are rounded to before */
} RowCodes;

/* Outputs `first` and the one after it. */
static inline RowCodes row_codes(const KernelArgs *args, int first, const TensorType *of)
{
    return (RowCodes){args->out[first].data, args->out[first + 1].data, type_rows(of), type_cols(of), of->dtype};
}

static inline bool row_codes_wanted(const RowCodes *q)
{
    return q->codes || q->scales;
}

static inline void row_codes_block(const RowCodes *q, int64_t row, int64_t col, const float *values, int64_t count)
{
    float    x[FP8_TILE];
    uint32_t most = 0;
    for (int64_t i = 0; i < count; i++) x[i] = q->dtype == DT_BF16 ? bf16_to_f32(bf16_from_f32(values[i])) : values[i];
    for (int64_t i = 0; i < count; i++) most = small_magnitude(x[i]) > most ? small_magnitude(x[i]) : most;
    float scale = fp8_row_scale(most), inverse = 1 / scale;
    for (int64_t i = 0; i < count && q->codes; i++)
        q->codes[row * q->cols + col + i] = (uint8_t)small_nearest(small_e4m3(), x[i] * inverse);
    if (q->scales) q->scales[col / FP8_TILE * q->rows + row] = scale;
}

/* Numbers [col, col + count) of a row; col is where a block begins, and the end one's end or the row's. */
static inline void row_codes_store(const RowCodes *q, int64_t row, int64_t col, const float *values, int64_t count)
{
    for (int64_t c = 0; c < count && row_codes_wanted(q); c += FP8_TILE)
        row_codes_block(q, row, col + c, values + c, min_i64(FP8_TILE, count - c));
}
