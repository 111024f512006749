/* Products of at most 64 rows of bf16 with codes of a byte (few_rows_codes.cu). */
#pragma once

#include "ops/products/few_rows.h"

bool   few_rows_codes_fit(const Gemm *gemm);
Status few_rows_codes_run(const Gemm *gemm, void *stream);

/* Those of one row that warpgroups make on this GPU: the same bits (few_rows_codes_one.cu). few_rows_codes_run makes them so. fusion: NULL:
 * none; of one part. Gated, n is the columns of c, half as many as w has rows. */
bool   few_rows_codes_one_fit(const Gemm *gemm, const RowsFusion *fusion);
Status few_rows_codes_one_run(const Gemm *gemm, const RowsFusion *fusion, void *stream);
