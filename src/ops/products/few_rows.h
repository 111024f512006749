/* Products of at most 64 rows that say rows_alone, in bf16 (few_rows.cu); of more rows where few_rows_fit says why. */
#pragma once

#include "device/cuda/kernel.h"
#include "device/gemm.h"

bool   few_rows_fit(const Gemm *gemm);
Status few_rows_run(const Gemm *gemm, void *stream);

/* Those of few_rows_fit that few_rows_bulk.cu can make too, on a GPU of compute capability 9.0 and later: the same bits, sooner. w_rows: of
 * b^T, at most n; columns behind them become zeros. */
bool   few_rows_bulk_fit(const Gemm *gemm);
Status few_rows_bulk_run(const Gemm *gemm, int64_t w_rows, void *stream);

/* Two of them that have one a, in one launch. */
Status few_rows_bulk_pair(const Gemm gemms[2], void *stream);
