/* relu: y = max(x, 0) (Nair and Hinton 2010); with attribute squared its square (So et al. 2021). relu of NaN is NaN. relu_bwd: dx = dy
 * d relu / d x, from x. */
#include "ops/elementwise/elementwise.h"

static const AttrDef relu_attrs[] = {ATTR_BOOL(ReluAttrs, squared, false), {0}};

static Status relu_backward(GradBuilder *grad, const Node *node)
{
    Value *in[] = {grad_of(grad, node->out[0]), node->in[0]}, *dx;
    TRY(grad_emit(grad, OP_RELU_BWD, node->attrs, in, 2, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static OpCost relu_cost(const Node *node)
{
    return cost_streaming(node, 2.0 * (double)type_numel(&node->in[0]->type));
}

static void relu_tile(float *y, const float *const *in, int64_t count, double squared)
{
    const float *x = in[0];
    for (int64_t i = 0; i < count; i++) {
        float r = x[i] < 0 ? 0 : x[i];
        y[i] = squared != 0 ? r * r : r;
    }
}

static void relu_bwd_tile(float *dx, const float *const *in, int64_t count, double squared)
{
    const float *dy = in[0], *x = in[1];
    for (int64_t i = 0; i < count; i++) dx[i] = x[i] <= 0 ? 0 : squared != 0 ? 2.0f * x[i] * dy[i] : dy[i];
}

static Status relu_cpu(const KernelArgs *args)
{
    broadcast_cpu(args, relu_tile, ((const ReluAttrs *)args->attrs)->squared);
    return OK;
}

static Status relu_bwd_cpu(const KernelArgs *args)
{
    broadcast_cpu(args, relu_bwd_tile, ((const ReluAttrs *)args->attrs)->squared);
    return OK;
}

const OpDef op_relu = {
    .id = OP_RELU,
    .name = "relu",
    .synopsis = "y = max(x, 0); squared: max(x, 0)^2",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .inplace = 1u << 0,
    .attrs_size = sizeof(ReluAttrs),
    .attrs = relu_attrs,
    .by_row = 1u << 0,
    .by_element = true,
    .infer = unary_infer,
    .backward = relu_backward,
    .cost = relu_cost,
    .cpu = {{DT_SET_DECODE, relu_cpu, "reference"}},
    .tile = relu_tile,
    .samples = "[9]\n"
               "[3,35,333] {squared=true}\n",
    .large = "[70,32000]\n",
};

const OpDef op_relu_bwd = {
    .id = OP_RELU_BWD,
    .name = "relu_bwd",
    .synopsis = "dx = dy where x > 0, else 0; squared: 2 x dy there",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .inplace = 1u << 0,
    .attrs_size = sizeof(ReluAttrs),
    .attrs = relu_attrs,
    .by_row = 1u << 0 | 1u << 1,
    .by_element = true,
    .infer = unary_infer,
    .cost = relu_cost,
    .cpu = {{DT_SET_FLOAT, relu_bwd_cpu, "reference"}},
    .tile = relu_bwd_tile,
    .samples = "[9], [9]\n"
               "[3,35,333], [3,35,333] {squared=true}\n",
    .large = "[70,32000], [70,32000] {squared=true}\n",
};
