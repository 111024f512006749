/* Products of at most 64 rows of bf16 with codes of a byte (few_rows_codes.cu). */
#pragma once

#include "device/cuda/kernel.h"
#include "device/gemm.h"

bool   few_rows_codes_fit(const Gemm *gemm);
Status few_rows_codes_run(const Gemm *gemm, void *stream);
