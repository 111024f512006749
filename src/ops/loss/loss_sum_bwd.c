/* loss_sum_bwd: d loss / d losses is inv_tokens everywhere, times the gradient d of the sum if the sum is only one term of the loss. */
#include "ops/infer.h"

static const AttrDef loss_sum_bwd_attrs[] = {ATTR_INT(LossSumBwdAttrs, rows, 1), ATTR_INT(LossSumBwdAttrs, cols, 1), {0}};

/* hyper f32 (HYPER_COUNT), [d (1) f32] -> dlosses (rows, cols) f32. It doesn't read the losses, so they may be computed together with the
 * ops that read their gradient. */
static Status loss_sum_bwd_infer(Node *node)
{
    const LossSumBwdAttrs *attrs = node->attrs;
    TRY(infer_input(node, 0, "hyper", DT_SET_F32, DIMS(HYPER_COUNT)));
    if (node->in[1]) TRY(infer_input(node, 1, "d", DT_SET_F32, DIMS(1)));
    node->out[0]->type = type_make(DT_F32, 2, attrs->rows, attrs->cols);
    return OK;
}

static OpCost loss_sum_bwd_cost(const Node *node)
{
    const LossSumBwdAttrs *attrs = node->attrs;
    return (OpCost){.bytes = 4.0 * (double)attrs->rows * (double)attrs->cols};
}

static Status loss_sum_bwd_cpu(const KernelArgs *args)
{
    float *dlosses = args->out[0].data, each = ((const float *)args->in[0].data)[HYPER_INV_TOKENS];
    if (args->in[1].data) each *= *(const float *)args->in[1].data;
    for (int64_t i = 0, n = type_numel(&args->out[0].type); i < n; i++) dlosses[i] = each;
    return OK;
}

const OpDef op_loss_sum_bwd = {
    .id = OP_LOSS_SUM_BWD,
    .name = "loss_sum_bwd",
    .synopsis = "dlosses = inv_tokens d",
    .num_in = 2,
    .num_out = 1,
    .min_in = 1,
    .attrs_size = sizeof(LossSumBwdAttrs),
    .attrs = loss_sum_bwd_attrs,
    .infer = loss_sum_bwd_infer,
    .cost = loss_sum_bwd_cost,
    .cpu = {{DT_SET_FLOAT, loss_sum_bwd_cpu, "reference"}},
    .holds = {HOLDS_HYPER},
    .samples = "[8] {rows=5, cols=33}\n"
               "[8], [1] {rows=5, cols=33}\n",
};
