/* linear_add: y[:, col:col+M] += alpha x w^T, in place: adds LoRA's part to the output of a linear layer. */
#include "ops/products/gemm.h"

static const AttrDef linear_add_attrs[] = {ATTR_FLOAT(LinearAttrs, alpha, 1), ATTR_INT(LinearAttrs, col, 0), {0}};

/* y (...,Y), x (...,K) with y's number of rows, w (M,K) -> y. */
static Status linear_add_infer(Node *node)
{
    const LinearAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "y", 2));
    TRY(infer_float(node, 1, "x", 2));
    const TensorType *y = &node->in[0]->type, *x = &node->in[1]->type;
    TRY(infer_input(node, 2, "w", DT_SET_DECODE, DIMS(-1, type_cols(x))));
    int64_t rows = node->in[2]->type.dim[0];
    FAIL_IF(type_rows(y) != type_rows(x), ERR_INVALID, "y has %lld rows and x %lld, expected the same", (long long)type_rows(y),
            (long long)type_rows(x));
    FAIL_IF(attrs->col < 0 || attrs->col + rows > type_cols(y), ERR_INVALID,
            "columns %lld to %lld of y, which has %lld: attribute col and w's rows don't fit", (long long)attrs->col,
            (long long)(attrs->col + rows), (long long)type_cols(y));
    node->out[0]->type = *y;
    return OK;
}

static Status linear_add_backward(GradBuilder *grad, const Node *node)
{
    Value      *y = node->in[0], *x = node->in[1], *w = node->in[2], *dy = grad_of(grad, node->out[0]), *out;
    LinearAttrs attrs = *(const LinearAttrs *)node->attrs;
    if (!dy) return OK;
    TRY(grad_add(grad, y, dy));
    if (grad_wanted(grad, x)) {
        Value *in[] = {dy, w, NULL};
        TRY(grad_emit(grad, OP_LINEAR_DX, &attrs, in, 3, ~0u, &out));
        TRY(grad_add(grad, x, out));
    }
    if (grad_wanted(grad, w)) {
        Value *in[] = {dy, x, grad_accumulator(grad, w)};
        attrs.rows = w->type.dim[0];
        attrs.dw_dtype = grad_dw_dtype(grad, w, dy->type.dtype);
        TRY(grad_emit(grad, OP_LINEAR_DW, &attrs, in, 3, ~0u, &out));
        grad_set(grad, w, out);
    }
    return OK;
}

GEMM_COST(linear_add)
GEMM_KERNELS(linear_add)

const OpDef op_linear_add = {
    .id = OP_LINEAR_ADD,
    .name = "linear_add",
    .synopsis = "y[:, col:col+M] += alpha x w^T",
    .num_in = 3,
    .num_out = 1,
    .min_in = 3,
    .alias = {{.out = 0, .in = 0}},
    .num_alias = 1,
    .attrs_size = sizeof(LinearAttrs),
    .attrs = linear_add_attrs,
    .infer = linear_add_infer,
    .backward = linear_add_backward,
    .cost = linear_add_cost,
    .workspace = linear_add_workspace,
    .cpu = {{DT_SET_DECODE, linear_add_tiles, "tiles"}, {DT_SET_FLOAT, linear_add_reference, "reference"}},
    .params = 1u << 2,
    .samples = "[3,7], [3,5], [7,5]\n"
               "[2,40,50], [2,40,8], [30,8] {alpha=0.5, col=6}\n",
    .large = "[2,256,1024], [2,256,16], [512,16] {alpha=2, col=256}\n",
};
