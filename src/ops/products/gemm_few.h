/* Products on the CPU of a few rows in bf16, with the bits of tiles: for products with rows_alone. */
#pragma once

#include "base/pool.h"
#include "device/gemm.h"

/* Whether the product has rows_alone, and operands in bf16 or in codes that become bf16. Its sums then are those of bf16 tiles for any
 * number of rows. */
bool gemm_has_pairs(const Gemm *gemm);

/* Whether gemm_run_few computes this product; tiles compute the other products of gemm_has_pairs. */
bool gemm_by_few(const Gemm *gemm);

/* Bytes of scratch that gemm_run_few needs. */
size_t gemm_few_workspace(const Gemm *gemm, int num_workers);

void gemm_run_few(const Gemm *gemm, ThreadPool *pool, void *workspace);
