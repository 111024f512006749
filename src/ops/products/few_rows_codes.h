/* Products of at most 64 rows of bf16 with codes of a byte (few_rows_codes.cu). */
#pragma once

#include "ops/products/few_rows.h"

bool   few_rows_codes_fit(const Gemm *gemm);
Status few_rows_codes_run(const Gemm *gemm, void *stream);

/* One-row products of few_rows_codes_fit that warpgroups compute on this GPU, with the same bits (few_rows_codes_one.cu).
 * few_rows_codes_run uses them. fusion NULL: none; its `parts` is 1. If gated, n is the columns of c: half the rows of w. */
bool   few_rows_codes_one_fit(const Gemm *gemm, const RowsFusion *fusion);
Status few_rows_codes_one_run(const Gemm *gemm, const RowsFusion *fusion, void *stream);
