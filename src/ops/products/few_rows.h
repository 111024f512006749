/* Products of at most 64 rows with rows_alone, in bf16 or f16 (few_rows.cu), and of more rows if few_rows_fit accepts them. */
#pragma once

#include "device/cuda/kernel.h"
#include "device/gemm.h"

/* Whether the product has rows_alone, and shapes, dtypes and alignment that few_rows.cu computes; m may be any number of rows. */
bool   few_rows_operands_fit(const Gemm *gemm);
bool   few_rows_fit(const Gemm *gemm);
Status few_rows_run(const Gemm *gemm, void *stream);

/* The norm of a product's single row, computed before the product: of x, or of x + residual. Pointers are aligned to 16 bytes. */
typedef struct RowsNorm {
    const void *x, *w, *residual; /* residual NULL: none */
    void       *sum;              /* NULL: not wanted */
    float       eps, offset;
} RowsNorm;
static inline bool rows_norm_fits(const Gemm *gemm)
{
    return gemm->m == 1 && gemm->k <= 8192;
}

/* What is fused into a product. parts: each sum consists of this many chains over equal parts of k, added up as (0 + 1) + (2 + 3). gated: w
 * is packed gate and up; c has one column for each pair of gate and up, and receives swiglu's result. */
typedef struct RowsFusion {
    int             parts; /* 1, 2 or 4 */
    bool            gated, gelu;
    const RowsNorm *norm; /* norm of a, which has one row and satisfies rows_norm_fits; NULL: none */
} RowsFusion;

/* Bytes of shared memory that a block of few_rows_bulk.cu may need. GPUs of compute capability 9.0 and later offer this, except those of
 * 12.0. */
enum { FEW_ROWS_BULK_SHARED = 220 << 10 };
static inline bool few_rows_bulk_serves(const CudaDevice *device)
{
    return cuda_sm(device) >= 90 && cuda_shared_bytes(device) >= FEW_ROWS_BULK_SHARED;
}

/* Products of few_rows_operands_fit that few_rows_bulk.cu computes on a GPU that it serves, with the bits of few_rows_run but faster.
 * w_rows: rows of b^T, at most n; columns of c beyond them become zeros. fusion NULL: none. */
bool   few_rows_bulk_fit(const Gemm *gemm);
Status few_rows_bulk_run(const Gemm *gemm, int64_t w_rows, const RowsFusion *fusion, void *stream);

/* Products of few_rows_operands_fit with 17 and more rows, whose chains take longer than reading b^T. Warpgroups compute them
 * (few_rows_group.cu), with the same bits and faster than few_rows_bulk.cu. processors: multiprocessors of the GPU. */
bool   few_rows_group_fit(const Gemm *gemm, const RowsFusion *fusion, int processors);
Status few_rows_group_run(const Gemm *gemm, int64_t w_rows, const RowsFusion *fusion, int processors, void *stream);

/* Two products of few_rows_bulk_fit with the same a, in one launch. */
Status few_rows_bulk_pair(const Gemm gemms[2], void *stream);
