/* Attributes and products of group_linear, for the op, the passes and the CUDA kernels. */
#pragma once

#include "ops/products/products.h"

typedef struct GroupLinearAttrs {
    int64_t begin, size; /* rows that are read of each group's matrix: `size` from `begin` on; size 0: all from `begin` on */
    bool    turned;      /* y_g = x_g w_g; else y_g = x_g w_g^T */
} GroupLinearAttrs;

/* count: number of groups; rows: rows of w of each group; begin, size: the first of these rows that is read, and how many are; cols:
 * columns of w. */
typedef struct Groups {
    int64_t count, rows, begin, size, cols;
} Groups;

static inline Groups groups_of(const GroupLinearAttrs *attrs, const TensorType *x, const TensorType *w)
{
    Groups g;
    g.count = x->dim[x->ndim - 2], g.begin = attrs->begin, g.cols = w->dim[1];
    g.rows = w->dim[0] / g.count;
    g.size = attrs->size ? attrs->size : g.rows - g.begin;
    return g;
}

/* Group g's product. */
static inline Gemm group_product(const KernelArgs *args, int64_t group)
{
    const GroupLinearAttrs *attrs = (const GroupLinearAttrs *)args->attrs;
    const TensorView       *x = &args->in[0], *w = &args->in[1], *y = &args->out[0];
    Groups                  g = groups_of(attrs, &x->type, &w->type);
    int64_t                 in = type_cols(&x->type), out = type_cols(&y->type);
    GemmOperand             a = gemm_operand(x, false, group * in), c = gemm_operand(y, false, group * out);
    a.stride = g.count * in;
    c.stride = g.count * out;
    Gemm gemm = gemm_of(type_numel(&x->type) / a.stride, out, in, a, gemm_operand(w, !attrs->turned, (group * g.rows + g.begin) * g.cols),
                        c, 1, false);
    products_note(args, &gemm, 1);
    return gemm;
}
