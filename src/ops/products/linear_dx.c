/* linear_dx: dx = alpha dy[:, col:col+M] w: gradient of a linear layer's input. */
#include "ops/products/gemm.h"

static const AttrDef linear_dx_attrs[] = {
    ATTR_FLOAT(LinearAttrs, alpha, 1), ATTR_INT(LinearAttrs, col, 0), ATTR_DTYPE(LinearAttrs, dtype), {0}};

/* dy (...,Y), w (M,K), [acc (...,K)] -> dx (...,K) of acc's dtype, else of attribute dtype, else dy's. */
static Status linear_dx_infer(Node *node)
{
    const LinearAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "dy", 2));
    TRY(infer_input(node, 1, "w", DT_SET_FLOAT, DIMS(-1, -1)));
    const TensorType *dy = &node->in[0]->type, *w = &node->in[1]->type;
    FAIL_IF(attrs->col < 0 || attrs->col + w->dim[0] > type_cols(dy), ERR_INVALID,
            "columns %lld to %lld of dy, which has %lld: attribute col and w's rows don't fit", (long long)attrs->col,
            (long long)(attrs->col + w->dim[0]), (long long)type_cols(dy));
    TensorType dx = *dy;
    dx.dim[dx.ndim - 1] = w->dim[1];
    if (attrs->dtype) dx.dtype = ATTR_TO_DTYPE(attrs->dtype);
    FAIL_IF(!(DT_SET(dx.dtype) & DT_SET_FLOAT), ERR_INVALID, "attribute dtype is %s, expected f32 or bf16", dtype_info(dx.dtype)->name);
    if (node->in[2]) {
        TRY(infer_like(node, 2, "acc", DT_SET_FLOAT, &dx));
        FAIL_IF(attrs->dtype && node->in[2]->type.dtype != dx.dtype, ERR_INVALID, "acc is %s, but attribute dtype says %s",
                dtype_info(node->in[2]->type.dtype)->name, dtype_info(dx.dtype)->name);
        dx.dtype = node->in[2]->type.dtype;
    }
    node->out[0]->type = dx;
    return OK;
}

GEMM_COST(linear_dx)
GEMM_KERNELS(linear_dx)

const OpDef op_linear_dx = {
    .id = OP_LINEAR_DX,
    .name = "linear_dx",
    .synopsis = "dx = alpha dy[:, col:col+M] w",
    .num_in = 3,
    .num_out = 1,
    .min_in = 2,
    .alias = {{.out = 0, .in = 2, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(LinearAttrs),
    .attrs = linear_dx_attrs,
    .by_row = 1u << 0 | 1u << 2,
    .infer = linear_dx_infer,
    .cost = linear_dx_cost,
    .workspace = linear_dx_workspace,
    .cpu = {{DT_SET_FLOAT, linear_dx_tiles, "tiles"}, {DT_SET_FLOAT, linear_dx_reference, "reference"}},
    .samples = "[3,7], [7,5], [3,5]\n"
               "[2,40,50], [30,9] {alpha=0.5, col=6}\n"
               "[20,1100], [1100,40], [20,40]\n"
               "bf16[30,48], bf16[48,64] {dtype=f32}\n",
    .large = "[2,256,1024], [512,256], [2,256,256] {alpha=2, col=256}\n",
};
