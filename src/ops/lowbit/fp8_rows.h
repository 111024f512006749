/* Codes of rows on the CPU: of fp8_rows_quantise and fp8_quantise, and of ops that make codes of a result beside it (OpCodes). They are
 * e4m3 with a scale for each FP8_TILE numbers of a row, or e4m3 or e5m2 under one scale. */
#pragma once

#include "ops/infer.h"
#include "ops/lowbit/fp8.h"
#include "ops/lowbit/fp8_tiles.h"

typedef struct RowCodes {
    uint8_t     *codes;
    float       *scales;        /* of blocks */
    uint8_t     *turned;        /* codes of the transpose */
    float       *amax;          /* brought up to date by row_codes_record; these four NULL: not wanted */
    const float *scale;         /* the one of all; NULL: each block has one */
    int64_t      rows, cols;    /* of what is quantised */
    DType        dtype, format; /* what the numbers are rounded to before; that of codes */
    uint32_t     most;          /* the largest finite magnitude so far */
} RowCodes;

/* The transpose of rows x cols codes of FP8, made by the pool (fp8_turn.c). */
void codes_turn(ThreadPool *pool, const uint8_t *codes, int64_t rows, int64_t cols, uint8_t *out);

/* What is made of rows of this type, as the op says in `codes`. */
RowCodes row_codes(const KernelArgs *args, const OpCodes *codes, const TensorType *of);

static inline bool row_codes_wanted(const RowCodes *q)
{
    return q->codes || q->scales || q->turned || q->amax;
}

/* Codes of FP8_TILE numbers at most under one scale. Returns the largest finite magnitude. */
uint32_t fp8_encode_scaled(const float *values, int64_t count, float factor, DType format, uint8_t *codes);

/* Numbers [col, col + count) of a row; col is where a block begins, and the end one's end or the row's. */
void row_codes_store(RowCodes *q, int64_t row, int64_t col, const float *values, int64_t count);

/* The largest magnitude of what was stored counts. Tasks come here in any order: the largest of all is the same. */
void row_codes_record(const RowCodes *q);
