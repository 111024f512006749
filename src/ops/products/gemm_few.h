/* Products on the CPU of a few rows of bf16 with the bits of tiles: those whose rows have the same bits whatever their number is. */
#pragma once

#include "base/pool.h"
#include "device/gemm.h"

/* Whether sums are those of tiles of bf16 for any number of rows: bf16 operands, or codes that become bf16, of a product whose rows have
 * the same bits alone. */
bool gemm_has_pairs(const Gemm *gemm);

/* Whether these make such a product; tiles make the others. */
bool gemm_by_few(const Gemm *gemm);

/* Bytes of scratch that gemm_run_few needs. */
size_t gemm_few_workspace(const Gemm *gemm, int num_workers);

void gemm_run_few(const Gemm *gemm, ThreadPool *pool, void *workspace);
