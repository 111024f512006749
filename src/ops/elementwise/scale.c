/* scale: a number times x, element by element. */
#include "ops/elementwise/elementwise.h"

static const AttrDef scale_attrs[] = {ATTR_FLOAT(ScaleAttrs, by, 1), {0}};

static Status scale_backward(GradBuilder *grad, const Node *node)
{
    Value *dy = grad_of(grad, node->out[0]), *dx;
    TRY(grad_emit(grad, OP_SCALE, node->attrs, &dy, 1, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static OpCost scale_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[0]->type));
}

VEC_ROW void scale_tile(float *y, const float *const *in, int64_t count, double number)
{
    float by = (float)number;
    for (int64_t i = 0; i < count; i++) y[i] = by * in[0][i];
}

VEC_TASK(scale_task)
{
    const KernelArgs *args = context;
    (void)worker;
    tiles_task(args, task, scale_tile, ((const ScaleAttrs *)args->attrs)->by);
}

static Status scale_cpu(const KernelArgs *args)
{
    return tiles_run(args, scale_task);
}

const OpDef op_scale = {
    .id = OP_SCALE,
    .name = "scale",
    .synopsis = "y = by * x",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .inplace = 1u << 0,
    .attrs_size = sizeof(ScaleAttrs),
    .attrs = scale_attrs,
    .by_row = 1u << 0,
    .by_element = true,
    .infer = unary_infer,
    .backward = scale_backward,
    .cost = scale_cost,
    .cpu = {{DT_SET_DECODE, scale_cpu, "reference"}},
    .tile = scale_tile,
    .samples = "[9] {by=-45.25}\n"
               "[3,35,333] {by=-45.25}\n",
    .large = "[2,300,2304] {by=-45.25}\n",
};
