/* mul: a b, element by element; used for gates and squares. */
#include "ops/elementwise/elementwise.h"

static Status mul_backward(GradBuilder *grad, const Node *node)
{
    Value *dy = grad_of(grad, node->out[0]);
    for (int k = 0; k < 2; k++) {
        Value *in[] = {dy, node->in[1 - k]}, *dx;
        if (!grad_wanted(grad, node->in[k])) continue;
        TRY(grad_emit(grad, OP_MUL, NULL, in, 2, ~0u, &dx));
        bool same = type_same_dims(&node->in[0]->type, &node->in[1]->type);
        TRY(same ? grad_add(grad, node->in[k], dx) : grad_add_broadcast(grad, node->in[k], dx));
    }
    return OK;
}

TILE_OF(mul, a[i] * b[i])

const OpDef op_mul = {
    .id = OP_MUL,
    .name = "mul",
    .synopsis = "y = a b",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .inplace = 1u << 0 | 1u << 1,
    .by_row = 1u << 0 | 1u << 1,
    .by_element = true,
    .infer = pair_infer,
    .backward = mul_backward,
    .cost = pair_cost,
    .cpu = {{DT_SET_DECODE, mul_cpu, "reference"}},
    .tile = mul_tile,
    .samples = "[9], [9]\n"
               "[3,35,333], [3,35,333]\n"
               "[3,5,37], [3,5,1]\n"
               "[1], [3,5,37]\n",
    .large = "[2,300,1024], [2,300,1024]\n",
};
