/* linear: y = x w^T + bias over the last dim; all leading dims of x are rows. */
#include "ops/gemm.h"

/* x (...,K), w (M,K), [bias (M)] -> y (...,M) of x's dtype. */
static Status linear_infer(Node *node)
{
    TRY(infer_float(node, 0, "x", 2));
    const TensorType *x = &node->in[0]->type;
    TRY(infer_input(node, 1, "w", DT_SET_FLOAT, DIMS(-1, type_cols(x))));
    int64_t rows = node->in[1]->type.dim[0];
    if (node->in[2]) TRY(infer_input(node, 2, "bias", DT_SET_FLOAT, DIMS(rows)));
    node->out[0]->type = *x;
    node->out[0]->type.dim[x->ndim - 1] = rows;
    return OK;
}

static Status linear_backward(GradBuilder *grad, const Node *node)
{
    Value *x = node->in[0], *w = node->in[1], *bias = node->in[2], *dy = grad_of(grad, node->out[0]), *out;
    if (!dy) return OK;
    if (grad_wanted(grad, x)) {
        Value *in[] = { dy, w, NULL };
        TRY(grad_emit(grad, OP_LINEAR_DX, NULL, in, 3, ~0u, &out));
        TRY(grad_add(grad, x, out));
    }
    if (grad_wanted(grad, w)) {
        LinearAttrs attrs = { .alpha = 1, .rows = w->type.dim[0], .dw_dtype = grad_dw_dtype(grad, w, dy->type.dtype) };
        Value      *in[] = { dy, x, grad_accumulator(grad, w) };
        TRY(grad_emit(grad, OP_LINEAR_DW, &attrs, in, 3, ~0u, &out));
        grad_set(grad, w, out);
    }
    if (bias && grad_wanted(grad, bias)) {
        ColSumAttrs attrs = { .dw_dtype = grad_dw_dtype(grad, bias, dy->type.dtype) };
        Value      *in[] = { dy, grad_accumulator(grad, bias) };
        TRY(grad_emit(grad, OP_COL_SUM, &attrs, in, 2, ~0u, &out));
        grad_set(grad, bias, out);
    }
    return OK;
}

static Gemm linear_gemm(const TensorType *x, const TensorType *w, const TensorType *y)
{
    return (Gemm){ .m = type_rows(x),
                   .n = w->dim[0],
                   .k = w->dim[1],
                   .trans_b = true,
                   .alpha = 1,
                   .a_dtype = x->dtype,
                   .b_dtype = w->dtype,
                   .c_dtype = y->dtype,
                   .a_stride = w->dim[1],
                   .b_stride = w->dim[1],
                   .c_stride = w->dim[0] };
}

static OpCost linear_cost(const Node *node)
{
    Gemm gemm = linear_gemm(&node->in[0]->type, &node->in[1]->type, &node->out[0]->type);
    return gemm_cost(&gemm);
}

static size_t linear_workspace(const Node *node, int num_workers)
{
    Gemm gemm = linear_gemm(&node->in[0]->type, &node->in[1]->type, &node->out[0]->type);
    return gemm_workspace(&gemm, num_workers);
}

static Gemm linear_bound(const KernelArgs *args)
{
    Gemm gemm = linear_gemm(&args->in[0].type, &args->in[1].type, &args->out[0].type);
    gemm.a = args->in[0].data;
    gemm.b = args->in[1].data;
    gemm.c = args->out[0].data;
    if (args->num_in > 2) {
        gemm.bias = args->in[2].data;
        gemm.bias_dtype = args->in[2].type.dtype;
    }
    return gemm;
}

static Status linear_tiles(const KernelArgs *args)
{
    Gemm gemm = linear_bound(args);
    gemm_run(&gemm, args->pool, args->workspace);
    return OK;
}

static Status linear_reference(const KernelArgs *args)
{
    Gemm gemm = linear_bound(args);
    gemm_reference(&gemm);
    return OK;
}

static const OpSample linear_samples[] = {
    { .in = { { DT_F32, 2, { 3, 5 } }, { DT_F32, 2, { 7, 5 } }, { DT_F32, 1, { 7 } } } },
    { .in = { { DT_F32, 3, { 2, 150, 40 } }, { DT_F32, 2, { 530, 40 } } } },
    { .in = { { DT_F32, 3, { 2, 10, 1100 } }, { DT_F32, 2, { 18, 1100 } }, { DT_F32, 1, { 18 } } } },
};

const OpDef op_linear = {
    .id = OP_LINEAR,
    .name = "linear",
    .synopsis = "y = x w^T + bias",
    .num_in = 3,
    .num_out = 1,
    .min_in = 2,
    .infer = linear_infer,
    .backward = linear_backward,
    .cost = linear_cost,
    .workspace = linear_workspace,
    .cpu = { { DT_SET_FLOAT, linear_tiles, "tiles" }, { DT_SET_FLOAT, linear_reference, "reference" } },
    .samples = linear_samples,
    .num_samples = sizeof linear_samples / sizeof linear_samples[0],
};
