/* Shared by rows_linear on CPU and CUDA, and by passes. */
#pragma once

#include "ops/products/normed_rows.h"

enum { ROWS_X, ROWS_W, ROWS_BIAS, ROWS_NORM, ROWS_RESIDUAL };
enum { ROWS_WHOLE = 64, ROWS_MOST_PARTS = 4 }; /* ROWS_WHOLE: the length of each part along k is a multiple of this */

typedef struct RowsLinearAttrs {
    int64_t parts; /* parts of each sum along k: 1, 2 or 4, of equal size */
    bool    gated; /* y = silu(gate) * up, of packed gate and up, as in swiglu */
    bool    gelu;  /* gelu by tanh in place of silu */
    double  eps;   /* epsilon of the norm */
    double  offset;
} RowsLinearAttrs;

static inline bool rows_parts_fit(int64_t k, int64_t parts)
{
    return parts == 1 || ((parts == 2 || parts == ROWS_MOST_PARTS) && k % (parts * ROWS_WHOLE) == 0);
}

/* The product with all rows of w. c: y; if gated, a matrix with as many columns as w has rows. */
static inline int rows_linear_products(const KernelArgs *args, Gemm *out)
{
    int count = linear_products(args, out);
    if (((const RowsLinearAttrs *)args->attrs)->gated) out->c.stride = out->n;
    return count;
}
