/* linear: y = x w^T + bias over the last dim; all leading dims of x are rows. */
#include "ops/products/gemm.h"

static const AttrDef linear_attrs[] = {ATTR_DTYPE(LinearAttrs, dtype), {0}};

/* x (...,K), w (M,K), [bias (M)] -> y (...,M) of attribute dtype, else x's. */
static Status linear_infer(Node *node)
{
    TRY(infer_float(node, 0, "x", 2));
    const TensorType *x = &node->in[0]->type;
    TRY(infer_input(node, 1, "w", DT_SET_DECODE, DIMS(-1, type_cols(x))));
    int64_t rows = node->in[1]->type.dim[0];
    if (node->in[2]) TRY(infer_input(node, 2, "bias", DT_SET_DECODE, DIMS(rows)));
    const LinearAttrs *attrs = node->attrs;
    node->out[0]->type = *x;
    if (attrs->dtype) node->out[0]->type.dtype = ATTR_TO_DTYPE(attrs->dtype);
    FAIL_IF(!(DT_SET(node->out[0]->type.dtype) & DT_SET_DECODE), ERR_INVALID, "dtype is %s; expected f32, bf16 or f16",
            dtype_info(node->out[0]->type.dtype)->name);
    node->out[0]->type.dim[x->ndim - 1] = rows;
    return OK;
}

static Status linear_backward(GradBuilder *grad, const Node *node)
{
    Value *x = node->in[0], *w = node->in[1], *bias = node->in[2], *dy = grad_of(grad, node->out[0]), *out;
    if (!dy) return OK;
    if (grad_wanted(grad, x)) {
        Value *in[] = {dy, w, NULL};
        TRY(grad_emit(grad, OP_LINEAR_DX, NULL, in, 3, ~0u, &out));
        TRY(grad_add(grad, x, out));
    }
    if (grad_wanted(grad, w)) {
        LinearAttrs attrs = {.alpha = 1, .rows = w->type.dim[0], .dw_dtype = grad_dw_dtype(grad, w, dy->type.dtype)};
        Value      *in[] = {dy, x, grad_accumulator(grad, w)};
        TRY(grad_emit(grad, OP_LINEAR_DW, &attrs, in, 3, ~0u, &out));
        grad_set(grad, w, out);
    }
    if (bias && grad_wanted(grad, bias)) {
        ColSumAttrs attrs = {.dw_dtype = grad_dw_dtype(grad, bias, dy->type.dtype)};
        Value      *in[] = {dy, grad_accumulator(grad, bias)};
        TRY(grad_emit(grad, OP_COL_SUM, &attrs, in, 2, ~0u, &out));
        grad_set(grad, bias, out);
    }
    return OK;
}

GEMM_COST(linear)
GEMM_KERNELS(linear)

const OpDef op_linear = {
    .id = OP_LINEAR,
    .name = "linear",
    .synopsis = "y = x w^T + bias",
    .num_in = 3,
    .num_out = 1,
    .min_in = 2,
    .attrs_size = sizeof(LinearAttrs),
    .attrs = linear_attrs,
    .by_row = 1u << 0,
    .infer = linear_infer,
    .backward = linear_backward,
    .cost = linear_cost,
    .workspace = linear_workspace,
    .cpu = {{DT_SET_DECODE, linear_tiles, "tiles"}, {DT_SET_DECODE, linear_reference, "reference"}},
    .params = 1u << 1 | 1u << 2,
    .samples = "[3,5], [7,5], [7]\n"
               "[2,150,40], [530,40]\n"
               "[2,10,1100], [18,1100], [18]\n"
               "bf16[30,64], bf16[48,64], [48] {dtype=f32}\n"
               "[9,72], [50,72], [50] rows_alone\n",
    .large = "[2,256,512], [768,512], [768]\n"
             "[2,512,1024], [3072,1024]\n"
             "[2,512,1024], [16,1024]\n"
             "[7,1024], [4096,1024], [4096] rows_alone\n"
             "[16,3072], [1024,3072] rows_alone\n"
             "[29,520], [6146,520] rows_alone\n"
             "[64,3072], [1024,3072] rows_alone\n"
             "[300,1024], [2048,1024] rows_alone\n",
};
