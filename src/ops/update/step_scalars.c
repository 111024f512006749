/* step_scalars: whether an optimizer step is applied, and scalars that depend on the number of steps applied so far.
 *
 *   count <- count + 1 if loss and norm are finite; the step is then applied
 *   hyper' = hyper with bias1 = 1 - beta1^t, bias2 = 1 - beta2^t, t = the count with this step
 *
 * The count is kept on the device, so that a step can be queued before it is known whether the previous one was applied. */
#include "ops/update/step_scalars.h"

#include "ops/infer.h"

static const AttrDef step_scalars_attrs[] = {
    ATTR_FLOAT(StepScalarsAttrs, beta1, 0.9),
    ATTR_FLOAT(StepScalarsAttrs, beta2, 0.999),
    {0},
};

/* hyper f32 (HYPER_COUNT), norm2, loss (1) f32, count (1) i64 -> hyper' (HYPER_COUNT), count' in place, applied (1) f32. */
static Status step_scalars_infer(Node *node)
{
    TRY(infer_input(node, STEP_IN_HYPER, "hyper", DT_SET_F32, DIMS(HYPER_COUNT)));
    TRY(infer_input(node, STEP_IN_NORM2, "norm2", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, STEP_IN_LOSS, "loss", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, STEP_IN_COUNT, "count", DT_SET(DT_I64), DIMS(1)));
    node->out[STEP_OUT_HYPER]->type = node->in[STEP_IN_HYPER]->type;
    node->out[STEP_OUT_COUNT]->type = node->in[STEP_IN_COUNT]->type;
    node->out[STEP_OUT_APPLIED]->type = type_make(DT_F32, 1, INT64_C(1));
    return OK;
}

static OpCost step_scalars_cost(const Node *node)
{
    return cost_streaming(node, 100);
}

static Status step_scalars_cpu(const KernelArgs *args)
{
    step_scalars(args->attrs, args->in, args->out);
    return OK;
}

const OpDef op_step_scalars = {
    .id = OP_STEP_SCALARS,
    .name = "step_scalars",
    .synopsis = "hyper' = hyper with the bias corrections of this step; if norm and loss are finite, applied = 1 and count' = "
                "count + 1",
    .num_in = 4,
    .num_out = 3,
    .min_in = 4,
    .alias = {{.out = STEP_OUT_COUNT, .in = STEP_IN_COUNT}},
    .num_alias = 1,
    .attrs_size = sizeof(StepScalarsAttrs),
    .attrs = step_scalars_attrs,
    .infer = step_scalars_infer,
    .cost = step_scalars_cost,
    .cpu = {{DT_SET_FLOAT, step_scalars_cpu, "reference"}},
    .holds = {[STEP_IN_HYPER] = HOLDS_HYPER, [STEP_IN_NORM2] = HOLDS_NORM2},
    .samples = "[8], [1], [1], i64[1] below=1000\n",
};
