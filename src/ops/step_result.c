/* step_result: what a step tells the host, put where the host can read it while the next step runs: a ring of rows in the host's
 * memory, one row a step. */
#include "ops/infer.h"

enum { IN_LOSS, IN_NORM2, IN_APPLIED, IN_STEP, IN_RING, IN_ACCURACY };

/* loss, norm2, applied (1) f32, step i64 (STEP_COUNT), ring (RESULT_ROWS, RESULT_COUNT) f32,
 * [accuracy (1) f32] -> ring' in place. */
static Status step_result_infer(Node *node)
{
    TRY(infer_input(node, IN_LOSS, "loss", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_NORM2, "norm2", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_APPLIED, "applied", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_STEP, "step", DT_SET(DT_I64), DIMS(STEP_COUNT)));
    TRY(infer_input(node, IN_RING, "ring", DT_SET_F32, DIMS(RESULT_ROWS, RESULT_COUNT)));
    if (node->in[IN_ACCURACY]) TRY(infer_input(node, IN_ACCURACY, "accuracy", DT_SET_F32, DIMS(1)));
    node->out[0]->type = node->in[IN_RING]->type;
    return OK;
}

static OpCost step_result_cost(const Node *node)
{
    (void)node;
    return (OpCost){.bytes = 2 * RESULT_COUNT * sizeof(float)};
}

static Status step_result_cpu(const KernelArgs *args)
{
    uint64_t row = (uint64_t)((const int64_t *)args->in[IN_STEP].data)[STEP_INDEX] % RESULT_ROWS;
    float   *out = (float *)args->out[0].data + row * RESULT_COUNT;
    out[RESULT_LOSS] = *(const float *)args->in[IN_LOSS].data;
    out[RESULT_NORM2] = *(const float *)args->in[IN_NORM2].data;
    out[RESULT_APPLIED] = *(const float *)args->in[IN_APPLIED].data;
    if (args->in[IN_ACCURACY].data) out[RESULT_ACCURACY] = *(const float *)args->in[IN_ACCURACY].data;
    return OK;
}

static const OpSample step_result_samples[] = {
    {.in = {{DT_F32, 1, {1}}, {DT_F32, 1, {1}}, {DT_F32, 1, {1}}, {DT_I64, 1, {STEP_COUNT}}, {DT_F32, 2, {RESULT_ROWS, RESULT_COUNT}}},
     .int_range = {[IN_STEP] = 99}},
    {.in = {{DT_F32, 1, {1}},
            {DT_F32, 1, {1}},
            {DT_F32, 1, {1}},
            {DT_I64, 1, {STEP_COUNT}},
            {DT_F32, 2, {RESULT_ROWS, RESULT_COUNT}},
            {DT_F32, 1, {1}}},
     .int_range = {[IN_STEP] = 99}},
};

const OpDef op_step_result = {
    .id = OP_STEP_RESULT,
    .name = "step_result",
    .synopsis = "row step mod rows of the ring is loss, norm2, applied, [accuracy]",
    .num_in = 6,
    .num_out = 1,
    .min_in = 5,
    .alias = {{.out = 0, .in = IN_RING}},
    .num_alias = 1,
    .infer = step_result_infer,
    .cost = step_result_cost,
    .cpu = {{DT_SET_F32, step_result_cpu, "reference"}},
    .samples = step_result_samples,
    .num_samples = sizeof step_result_samples / sizeof step_result_samples[0],
};
