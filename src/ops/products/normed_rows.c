#include "ops/products/normed_rows.h"

#include "ops/elementwise/gelu.h"
#include "ops/ops.h"
#include "ops/products/gemm.h"

#include <math.h>

Status rows_infer_norm(Node *node, int norm)
{
    const TensorType *x = &node->in[0]->type;
    FAIL_IF(node->in[norm + 1] && !node->in[norm], ERR_INVALID, "a residual is there, and no norm that reads the sum");
    if (node->in[norm]) TRY(infer_input(node, norm, "norm", DT_SET_DECODE, DIMS(type_cols(x))));
    if (node->in[norm + 1]) TRY(infer_like(node, norm + 1, "residual", DT_SET(x->dtype), x));
    node->out[ROWS_SUM]->type = node->in[norm + 1] ? *x : (TensorType){0};
    return OK;
}

/* Writes the normed rows to the beginning of the workspace. */
static Status make_norm(const KernelArgs *args, const RowsFused *fused)
{
    int          norm = fused->norm;
    RowsNormed   normed = rows_normed(args, norm);
    RmsNormAttrs attrs = {fused->eps, fused->offset, 0, 0};
    KernelArgs   made = *args;
    TensorView   in[NODE_MAX_IN] = {normed.x, args->in[norm]}, out[NODE_MAX_OUT] = {normed.y};
    made.in = in, made.out = out, made.attrs = &attrs;
    made.num_in = 2, made.num_out = 2;
    if (!rows_is_sum(args, norm)) return op_rms_norm.cpu[0].run(&made);
    in[1] = args->in[norm + 1], in[2] = args->in[norm];
    out[0] = normed.sum, out[1] = normed.y;
    made.num_in = 3, made.num_out = 3;
    return op_add_rms_norm.cpu[0].run(&made);
}

/* Makes y of gate and up, which are packed in rows twice as wide. */
static void make_gated(const TensorView *y, const void *packed, bool gelu)
{
    DType   dtype = y->type.dtype;
    int64_t cols = type_cols(&y->type);
    for (int64_t row = 0; row < type_rows(&y->type); row++)
        for (int64_t c = 0; c < cols; c++) {
            float g = vec_get(packed, dtype, row * 2 * cols + c), u = vec_get(packed, dtype, row * 2 * cols + cols + c);
            float h = g / (1.0f + expf(-(gelu ? gelu_argument(g) : g))) * u;
            dtype_encode(dtype, &h, 1, (char *)y->data + dtype_bytes(dtype, row * cols + c));
        }
}

static size_t whole(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t gated_bytes(const KernelArgs *args, const RowsFused *fused)
{
    const TensorType *y = &args->out[ROWS_Y].type;
    return fused->gated ? whole((size_t)dtype_bytes(y->dtype, 2 * type_numel(y))) : 0;
}

size_t rows_fused_workspace(const KernelArgs *args, const RowsFused *fused, const Gemm *g, int num_workers)
{
    return rows_normed_bytes(args, fused->norm) + gated_bytes(args, fused) + whole(gemm_workspace(g, num_workers));
}

Status rows_fused_run(const KernelArgs *args, const RowsFused *fused, Gemm *g, bool reference)
{
    size_t normed = rows_normed_bytes(args, fused->norm), packed = gated_bytes(args, fused);
    if (normed) TRY(make_norm(args, fused));
    if (!view_wanted(&args->out[ROWS_Y])) return OK;
    if (normed) g->a.data = args->workspace;
    if (fused->gated) g->c.data = (char *)args->workspace + normed;
    if (reference)
        gemm_reference(g);
    else
        gemm_run(g, args->pool, (char *)args->workspace + normed + packed);
    if (fused->gated) make_gated(&args->out[ROWS_Y], g->c.data, fused->gelu);
    return OK;
}
