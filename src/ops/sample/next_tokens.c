/* next_tokens: the tokens that a decoding step reads. Each is given by the host, or else it is the token last chosen for the row's
 * sequence, which the host needn't know yet. */
#include "ops/infer.h"

/* tokens i32 (B,1), slots i32 (B), next i32 (S) -> y i32 (B,1). A slot outside [0, S) marks an idle row, which gets token 0. */
static Status next_tokens_infer(Node *node)
{
    TRY(infer_input(node, 0, "tokens", DT_SET(DT_I32), DIMS(-1, 1)));
    TRY(infer_input(node, 1, "slots", DT_SET(DT_I32), DIMS(node->in[0]->type.dim[0])));
    TRY(infer_input(node, 2, "next", DT_SET(DT_I32), DIMS(-1)));
    node->out[0]->type = node->in[0]->type;
    return OK;
}

static OpCost next_tokens_cost(const Node *node)
{
    return (OpCost){.bytes = 4 * (double)type_bytes(&node->in[0]->type)};
}

static Status next_tokens_cpu(const KernelArgs *args)
{
    const int32_t *tokens = args->in[0].data, *slots = args->in[1].data, *next = args->in[2].data;
    int64_t        num_slots = args->in[2].type.dim[0];
    for (int64_t b = 0; b < args->in[0].type.dim[0]; b++) {
        int32_t chosen = slots[b] >= 0 && slots[b] < num_slots ? next[slots[b]] : 0;
        ((int32_t *)args->out[0].data)[b] = tokens[b] >= 0 ? tokens[b] : chosen >= 0 ? chosen : 0;
    }
    return OK;
}

const OpDef op_next_tokens = {
    .id = OP_NEXT_TOKENS,
    .name = "next_tokens",
    .synopsis = "y[b] = tokens[b] unless negative, else next[slots[b]]",
    .num_in = 3,
    .num_out = 1,
    .min_in = 3,
    .infer = next_tokens_infer,
    .cost = next_tokens_cost,
    .cpu = {{DT_SET_FLOAT, next_tokens_cpu, "reference"}},
    .holds = {[1] = HOLDS_SLOTS},
    .samples = "i32[5,1] below=9, i32[5] below=7, i32[7] below=100\n",
};
