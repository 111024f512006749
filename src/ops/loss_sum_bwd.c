/* loss_sum_bwd: d loss / d losses: inv_tokens everywhere. */
#include "ops/infer.h"

/* losses (B,T) f32 (only its dims are read), hyper f32 (HYPER_COUNT) -> dlosses (B,T) f32. */
static Status loss_sum_bwd_infer(Node *node)
{
    TRY(infer_input(node, 0, "losses", DT_SET_F32, DIMS(-1, -1)));
    TRY(infer_input(node, 1, "hyper", DT_SET_F32, DIMS(HYPER_COUNT)));
    node->out[0]->type = node->in[0]->type;
    return OK;
}

static OpCost loss_sum_bwd_cost(const Node *node)
{
    return (OpCost){ .bytes = (double)type_bytes(&node->in[0]->type) };
}

static Status loss_sum_bwd_cpu(const KernelArgs *args)
{
    float *dlosses = args->out[0].data, inv_tokens = ((const float *)args->in[1].data)[HYPER_INV_TOKENS];
    for (int64_t i = 0, n = type_numel(&args->out[0].type); i < n; i++) dlosses[i] = inv_tokens;
    return OK;
}

static const OpSample loss_sum_bwd_samples[] = { { .in = { { DT_F32, 2, { 5, 33 } }, { DT_F32, 1, { HYPER_COUNT } } } } };

const OpDef op_loss_sum_bwd = {
    .id = OP_LOSS_SUM_BWD,
    .name = "loss_sum_bwd",
    .synopsis = "dlosses = inv_tokens",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .flags = OP_INPLACE,
    .infer = loss_sum_bwd_infer,
    .cost = loss_sum_bwd_cost,
    .cpu = { { DT_SET_FLOAT, loss_sum_bwd_cpu, "reference" } },
    .samples = loss_sum_bwd_samples,
    .num_samples = sizeof loss_sum_bwd_samples / sizeof loss_sum_bwd_samples[0],
};
