/* stop_gradient: x as a constant, through which no gradient flows. It is a view: no kernel runs. */
#include "ops/infer.h"

static Status stop_gradient_infer(Node *node)
{
    TRY(infer_float(node, 0, "x", 1));
    node->out[0]->type = node->in[0]->type;
    return OK;
}

static OpCost stop_gradient_cost(const Node *node)
{
    (void)node;
    return (OpCost){0};
}

const OpDef op_stop_gradient = {
    .id = OP_STOP_GRADIENT,
    .name = "stop_gradient",
    .synopsis = "y = x; no gradient flows through it",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .flags = OP_VIEW | OP_STOPS,
    .by_row = 1u << 0,
    .by_element = true,
    .infer = stop_gradient_infer,
    .cost = stop_gradient_cost,
    .samples = "[5,7]\n",
};
