/* Products of at most 64 rows that say rows_alone, in bf16 or f16 (few_rows.cu); of more rows where few_rows_fit says why. */
#pragma once

#include "device/cuda/kernel.h"
#include "device/gemm.h"

/* Whether it is such a product but for the number of rows. */
bool   few_rows_operands_fit(const Gemm *gemm);
bool   few_rows_fit(const Gemm *gemm);
Status few_rows_run(const Gemm *gemm, void *stream);

/* What becomes of the one row x of a product before it: its norm, or that of its sum with a residual. Pointers lie at multiples of 16
 * bytes. */
typedef struct RowsNorm {
    const void *x, *w, *residual; /* residual: NULL: none */
    void       *sum;              /* NULL: not wanted */
    float       eps, offset;
} RowsNorm;
static inline bool rows_norm_fits(const Gemm *gemm)
{
    return gemm->m == 1 && gemm->k <= 8192;
}

/* What a product is made with: sums of so many parts of k, each a chain, added up as (0 + 1) + (2 + 3); or, of w that is packed gate and up
 * and as many columns of c as each has, what swiglu makes of both. */
typedef struct RowsFusion {
    int             parts; /* 1, 2 or 4 */
    bool            gated, gelu;
    const RowsNorm *norm; /* of one row, the gemm's a: NULL, or rows_norm_fits */
} RowsFusion;

/* Of compute capability 9.0 and later, with as much shared memory for a block: those of 12.0 have less. */
enum { FEW_ROWS_BULK_SHARED = 220 << 10 };
static inline bool few_rows_bulk_serves(const CudaDevice *device)
{
    return cuda_sm(device) >= 90 && cuda_shared_bytes(device) >= FEW_ROWS_BULK_SHARED;
}

/* Those of few_rows_operands_fit that few_rows_bulk.cu can make, on a GPU that it serves: the bits of few_rows_run, sooner. w_rows: of b^T,
 * at most n; columns behind them become zeros. fusion: NULL: none. */
bool   few_rows_bulk_fit(const Gemm *gemm);
Status few_rows_bulk_run(const Gemm *gemm, int64_t w_rows, const RowsFusion *fusion, void *stream);

/* Two of them that have one a, in one launch. */
Status few_rows_bulk_pair(const Gemm gemms[2], void *stream);
