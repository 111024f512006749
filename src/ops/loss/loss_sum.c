/* loss_sum: the training loss: the sum of token losses divided by the number of trained tokens of the whole optimizer step, which is known
 * beforehand. Micro-batches add to it. If differentiation starts here, its gradient is 1. */
#include "ops/infer.h"

/* losses (B,T) f32, hyper f32 (HYPER_COUNT), [acc (1) f32] -> (1) f32. */
static Status loss_sum_infer(Node *node)
{
    TRY(infer_input(node, 0, "losses", DT_SET_F32, DIMS(-1, -1)));
    TRY(infer_input(node, 1, "hyper", DT_SET_F32, DIMS(HYPER_COUNT)));
    if (node->in[2]) TRY(infer_input(node, 2, "acc", DT_SET_F32, DIMS(1)));
    node->out[0]->type = type_make(DT_F32, 1, INT64_C(1));
    return OK;
}

static Status loss_sum_backward(GradBuilder *grad, const Node *node)
{
    const TensorType *losses = &node->in[0]->type;
    LossSumBwdAttrs   attrs = {.rows = losses->dim[0], .cols = losses->dim[1]};
    Value            *in[] = {node->in[1], grad_of(grad, node->out[0])}, *out[1];
    if (grad_wanted(grad, node->in[2])) {
        static const FullAttrs one = {.size = 1, .value = 1};
        Value                 *d = in[1];
        if (!d) TRY(grad_emit(grad, OP_FULL, &one, NULL, 0, 1, &d));
        TRY(grad_add(grad, node->in[2], d));
    }
    if (!grad_wanted(grad, node->in[0])) return OK;
    TRY(grad_emit(grad, OP_LOSS_SUM_BWD, &attrs, in, 2, 1, out));
    return grad_add(grad, node->in[0], out[0]);
}

static OpCost loss_sum_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[0]->type));
}

static Status loss_sum_cpu(const KernelArgs *args)
{
    const float *losses = args->in[0].data, *hyper = args->in[1].data;
    float       *out = args->out[0].data;
    double       sum = 0;
    for (int64_t i = 0, n = type_numel(&args->in[0].type); i < n; i++) sum += (double)losses[i];
    sum *= (double)hyper[HYPER_INV_TOKENS];
    *out = (float)(args->accumulate & 1 ? (double)*out + sum : sum);
    return OK;
}

const OpDef op_loss_sum = {
    .id = OP_LOSS_SUM,
    .name = "loss_sum",
    .synopsis = "loss = inv_tokens sum of losses",
    .num_in = 3,
    .num_out = 1,
    .min_in = 2,
    .alias = {{.out = 0, .in = 2, .accumulate = true}},
    .num_alias = 1,
    .flags = OP_LOSS,
    .infer = loss_sum_infer,
    .backward = loss_sum_backward,
    .cost = loss_sum_cost,
    .cpu = {{DT_SET_FLOAT, loss_sum_cpu, "reference"}},
    .holds = {[1] = HOLDS_HYPER},
    .constants = 1u << 1,
    .samples = "[2,7], [8]\n"
               "[5,333], [8], [1]\n",
};
