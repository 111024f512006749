/* What CPU, CUDA and passes share of rows_linear. */
#pragma once

#include "ops/products/products.h"

enum { ROWS_X, ROWS_W, ROWS_BIAS, ROWS_NORM, ROWS_RESIDUAL };
enum { ROWS_Y, ROWS_SUM };
enum { ROWS_WHOLE = 64, ROWS_MOST_PARTS = 4 }; /* numbers along k that parts are made of */

typedef struct RowsLinearAttrs {
    int64_t parts; /* of each sum, along k: 1, 2 or 4 of equal size */
    bool    gated; /* y = silu(gate) up, of packed gate and up; as swiglu */
    bool    gelu;  /* gelu by tanh in place of silu */
    double  eps;   /* of the norm */
    double  offset;
} RowsLinearAttrs;

static inline bool rows_parts_fit(int64_t k, int64_t parts)
{
    return parts == 1 || ((parts == 2 || parts == ROWS_MOST_PARTS) && k % (parts * ROWS_WHOLE) == 0);
}

static inline bool rows_is_normed(const KernelArgs *args)
{
    return args->num_in > ROWS_NORM && view_wanted(&args->in[ROWS_NORM]);
}

static inline bool rows_is_sum(const KernelArgs *args)
{
    return args->num_in > ROWS_RESIDUAL && view_wanted(&args->in[ROWS_RESIDUAL]);
}

static inline RmsNormAttrs rows_norm(const RowsLinearAttrs *attrs)
{
    RmsNormAttrs norm = {attrs->eps, attrs->offset, 0, 0};
    return norm;
}

/* Bytes of the normed rows, and of those before the norm where the sum may have no other place; each begins at a multiple of 64. */
static inline size_t rows_normed_bytes(const KernelArgs *args)
{
    size_t bytes = ((size_t)type_bytes(&args->in[ROWS_X].type) + 63) / 64 * 64;
    return !rows_is_normed(args) ? 0 : rows_is_sum(args) ? 2 * bytes : bytes;
}

/* What is normed, what it becomes, and the sum, in a workspace of rows_normed_bytes. */
typedef struct RowsNormed {
    TensorView x, y, sum; /* sum: of x and the residual */
} RowsNormed;

static inline RowsNormed rows_normed(const KernelArgs *args)
{
    RowsNormed normed = {args->in[ROWS_X], args->in[ROWS_X], args->in[ROWS_X]};
    normed.y.data = args->workspace;
    normed.sum.data = args->num_out > ROWS_SUM ? args->out[ROWS_SUM].data : NULL;
    if (!normed.sum.data && rows_is_sum(args)) normed.sum.data = (char *)args->workspace + rows_normed_bytes(args) / 2;
    return normed;
}

/* The product with all rows of w. c: y, or a matrix as wide as w has rows where y is gated. */
static inline int rows_linear_products(const KernelArgs *args, Gemm *out)
{
    int count = linear_products(args, out);
    if (((const RowsLinearAttrs *)args->attrs)->gated) out->c.stride = out->n;
    return count;
}
