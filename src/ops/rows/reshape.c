/* reshape: the same memory under other dims. A view: no kernel runs. */
#include "ops/infer.h"

static const AttrDef reshape_attrs[] = {
    ATTR_INT(ReshapeAttrs, ndim, 1), ATTR_INT(ReshapeAttrs, d0, 0), ATTR_INT(ReshapeAttrs, d1, 0),
    ATTR_INT(ReshapeAttrs, d2, 0),   ATTR_INT(ReshapeAttrs, d3, 0), {0},
};

/* x -> y of x's dtype, with the attribute's dims, which must give as many elements. */
static Status reshape_infer(Node *node)
{
    const ReshapeAttrs *attrs = node->attrs;
    FAIL_IF(attrs->ndim < 1 || attrs->ndim > TENSOR_MAX_DIMS, ERR_INVALID, "attribute ndim is %lld, expected 1 to %d",
            (long long)attrs->ndim, TENSOR_MAX_DIMS);
    const TensorType *x = &node->in[0]->type;
    TensorType        y = {.dtype = x->dtype, .ndim = (uint8_t)attrs->ndim};
    const int64_t     dims[] = {attrs->d0, attrs->d1, attrs->d2, attrs->d3};
    bool              fits = true;
    int64_t           left = type_numel(x);
    for (int i = 0; i < y.ndim; i++) {
        y.dim[i] = dims[i];
        fits = fits && dims[i] > 0 && left % dims[i] == 0;
        left = fits ? left / dims[i] : 0;
    }
    char want[64], got[64];
    FAIL_IF(!fits || left != 1, ERR_INVALID, "cannot reshape %s to %s: they differ in elements", type_text(x, got), type_text(&y, want));
    node->out[0]->type = y;
    return OK;
}

static Status reshape_backward(GradBuilder *grad, const Node *node)
{
    const TensorType *x = &node->in[0]->type;
    ReshapeAttrs      attrs = {.ndim = x->ndim, .d0 = x->dim[0], .d1 = x->dim[1], .d2 = x->dim[2], .d3 = x->dim[3]};
    Value            *in[] = {grad_of(grad, node->out[0])}, *out[1];
    TRY(grad_emit(grad, OP_RESHAPE, &attrs, in, 1, 1, out));
    return grad_add(grad, node->in[0], out[0]);
}

static OpCost reshape_cost(const Node *node)
{
    (void)node;
    return (OpCost){0};
}

const OpDef op_reshape = {
    .id = OP_RESHAPE,
    .name = "reshape",
    .synopsis = "y = x with other dims",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .flags = OP_VIEW,
    .attrs_size = sizeof(ReshapeAttrs),
    .attrs = reshape_attrs,
    .infer = reshape_infer,
    .backward = reshape_backward,
    .cost = reshape_cost,
    .samples = "[2,3,20] {ndim=2, d0=6, d1=20}\n"
               "[120] {ndim=4, d0=2, d1=3, d2=5, d3=4}\n",
};
