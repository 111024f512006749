/* As few_rows_bulk_run and few_rows_bulk_pair, of f16. */
#pragma once

#include "ops/products/few_rows.h"

Status few_rows_bulk_run_f16(const Gemm *gemm, int64_t w_rows, void *stream);
Status few_rows_bulk_pair_f16(const Gemm gemms[2], void *stream);
