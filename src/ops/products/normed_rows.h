/* What is fused into products of few rows, on CPU and CUDA: they may read the norm of their rows x, or of x + residual, and combine gate
 * and up. Input `norm` of such an op is the norm's weights, the input after it the residual; output 1 is x + residual. */
#pragma once

#include "ops/products/products.h"

enum { ROWS_Y, ROWS_SUM };

static inline bool rows_is_normed(const KernelArgs *args, int norm)
{
    return args->num_in > norm && view_wanted(&args->in[norm]);
}

static inline bool rows_is_sum(const KernelArgs *args, int norm)
{
    return args->num_in > norm + 1 && view_wanted(&args->in[norm + 1]);
}

/* Bytes of the normed rows and, if there is a residual, of x + residual, as output 1 may be absent. Each begins at a multiple of 64. */
static inline size_t rows_normed_bytes(const KernelArgs *args, int norm)
{
    size_t bytes = ((size_t)type_bytes(&args->in[0].type) + 63) / 64 * 64;
    return !rows_is_normed(args, norm) ? 0 : rows_is_sum(args, norm) ? 2 * bytes : bytes;
}

/* x: rows before the norm; y: rows after it. y, and `sum` if it isn't output 1, are in a workspace of rows_normed_bytes. */
typedef struct RowsNormed {
    TensorView x, y, sum; /* sum: x + residual */
} RowsNormed;

static inline RowsNormed rows_normed(const KernelArgs *args, int norm)
{
    RowsNormed normed = {args->in[0], args->in[0], args->in[0]};
    normed.y.data = args->workspace;
    normed.sum.data = args->num_out > ROWS_SUM ? args->out[ROWS_SUM].data : NULL;
    if (!normed.sum.data && rows_is_sum(args, norm)) normed.sum.data = (char *)args->workspace + rows_normed_bytes(args, norm) / 2;
    return normed;
}

#ifndef __cplusplus
/* x (...,K), [norm (K)], [residual (...,K)] -> [s (...,K), with a residual] */
NODISCARD Status rows_infer_norm(Node *node, int norm);

/* What is fused into a product on the CPU. norm: the input that holds the norm's weights. gated: rows of the product are gate and up,
 * rounded to y's dtype, and y is what swiglu makes of them. */
typedef struct RowsFused {
    int    norm;
    bool   gated, gelu;
    double eps, offset; /* eps, offset: of the norm */
} RowsFused;

/* Bytes of the workspace for g, the product of x and w. It holds the normed rows, packed gate and up, and the product's own workspace. */
size_t rows_fused_workspace(const KernelArgs *args, const RowsFused *fused, const Gemm *g, int num_workers);
/* Computes y and x + residual, if they are wanted. On entry g's operands are bound; this changes them. */
NODISCARD Status rows_fused_run(const KernelArgs *args, const RowsFused *fused, Gemm *g, bool reference);
#endif
