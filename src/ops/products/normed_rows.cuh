/* The norm of a product's rows on CUDA: the arguments for a product that computes it, and a launch of its own for other products. */
#pragma once

#include "ops/norms/rms_norm.cuh"
#include "ops/products/few_rows.h"
#include "ops/products/normed_rows.h"

/* Launches the norm of all rows, into the workspace. norm: the input that holds the norm's weights. */
static Status launch_norm(const KernelArgs *args, int norm, double eps, double offset)
{
    RowsNormed   normed = rows_normed(args, norm);
    RmsNormAttrs attrs = {eps, offset, 0, 0};
    KernelArgs   made = *args;
    TensorView   none = {}, out[NODE_MAX_OUT] = {}, in[NODE_MAX_IN] = {}; /* none: no codes are wanted */
    made.in = in, made.out = out, made.attrs = &attrs;
    in[norm] = args->in[norm]; /* at its own index: args->constant has a bit for each index */
    if (!rows_is_sum(args, norm)) return run_rms_norm<false>(&made, &normed.x, &none, &in[norm], &none, &normed.y, NULL, 0, 0);
    return run_rms_norm<true>(&made, &normed.x, &args->in[norm + 1], &in[norm], &normed.sum, &normed.y, NULL, 0, 0);
}

/* Fills *out for a product that computes the norm itself. false: the norm needs a launch of its own. */
static bool norm_in_product(const KernelArgs *args, int norm, const Gemm *g, double eps, double offset, RowsNorm *out)
{
    const TensorView *x = &args->in[0], *w = &args->in[norm];
    RowsNorm          made = {};
    made.x = x->data, made.w = w->data;
    if (rows_is_sum(args, norm)) made.residual = args->in[norm + 1].data, made.sum = args->out[ROWS_SUM].data;
    made.eps = (float)eps, made.offset = (float)offset;
    *out = made;
    return rows_norm_fits(g) && w->type.dtype == x->type.dtype && is_aligned16(made.x) && is_aligned16(made.w) &&
           is_aligned16(made.residual) && is_aligned16(made.sum);
}
