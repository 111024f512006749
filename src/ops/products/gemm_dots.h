/* Products on the CPU whose elements are dot products of rows of a and of b. */
#pragma once

#include "base/pool.h"
#include "device/gemm.h"

/* Whether dot products compute this product. They round differently from tiles. */
bool gemm_by_dots(const Gemm *gemm);

/* Bytes of scratch that gemm_run_dots needs. */
size_t gemm_dots_workspace(const Gemm *gemm, int num_workers);

void gemm_run_dots(const Gemm *gemm, ThreadPool *pool, void *workspace);
