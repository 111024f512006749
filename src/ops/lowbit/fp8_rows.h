/* Codes of rows on the CPU, for fp8_rows_quantise, fp8_quantise and ops that also make codes of a result (OpCodes). Codes are e4m3 with a
 * scale for each FP8_TILE elements of a row, or e4m3 or e5m2 under one scale. */
#pragma once

#include "ops/infer.h"
#include "ops/lowbit/fp8.h"
#include "ops/lowbit/fp8_tiles.h"

typedef struct RowCodes {
    uint8_t     *codes;
    float       *scales;        /* scales of blocks */
    uint8_t     *turned;        /* codes of the transpose */
    float       *amax;          /* updated by row_codes_record; each of these four is NULL if not wanted */
    const float *scale;         /* scale of all elements; NULL: each block has its own */
    int64_t      rows, cols;    /* of the quantised tensor */
    DType        dtype, format; /* dtype that elements are rounded to first; dtype of codes */
    uint32_t     most;          /* the largest finite magnitude so far */
} RowCodes;

/* Transposes rows x cols FP8 codes, on the pool (fp8_turn.c). */
void codes_turn(ThreadPool *pool, const uint8_t *codes, int64_t rows, int64_t cols, uint8_t *out);

/* The codes wanted of rows of type `of`; `codes` says which inputs and outputs of the op they use. */
RowCodes row_codes(const KernelArgs *args, const OpCodes *codes, const TensorType *of);

static inline bool row_codes_wanted(const RowCodes *q)
{
    return q->codes || q->scales || q->turned || q->amax;
}

/* Encodes at most FP8_TILE values under one scale, which is `factor`. Returns the largest finite magnitude. */
uint32_t fp8_encode_scaled(const float *values, int64_t count, float factor, DType format, uint8_t *codes);

/* Stores codes of elements [col, col + count) of a row. col is a block's beginning; the end is a block's end or the row's. */
void row_codes_store(RowCodes *q, int64_t row, int64_t col, const float *values, int64_t count);

/* Adds q->most to the tensor's largest magnitude. Tasks may call it in any order: the maximum is the same. */
void row_codes_record(const RowCodes *q);
