/* step_result: writes a step's results to a ring buffer in host memory, with one row per step, so that the host can read them while the
 * next step runs. */
#include "ops/infer.h"

enum { IN_LOSS, IN_NORM2, IN_APPLIED, IN_STEP, IN_RING, IN_SCALARS };

static int scalars_of(const Node *node)
{
    int count = 0;
    while (count < MOST_SCALARS && node->in[IN_SCALARS + count]) count++;
    return count;
}

/* loss, norm2, applied (1) f32, step i64 (STEP_COUNT), ring (RESULT_ROWS, R) f32, up to MOST_SCALARS named scalars (1) f32 -> ring' in
 * place. A row holds loss, norm2, applied and the scalars; further columns stay unchanged. */
static Status step_result_infer(Node *node)
{
    TRY(infer_input(node, IN_LOSS, "loss", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_NORM2, "norm2", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_APPLIED, "applied", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, IN_STEP, "step", DT_SET(DT_I64), DIMS(STEP_COUNT)));
    TRY(infer_input(node, IN_RING, "ring", DT_SET_F32, DIMS(RESULT_ROWS, -1)));
    for (int i = 0; i < scalars_of(node); i++) TRY(infer_input(node, IN_SCALARS + i, "scalar", DT_SET_F32, DIMS(1)));
    int64_t count = RESULT_SCALARS + scalars_of(node), cols = type_cols(&node->in[IN_RING]->type);
    FAIL_IF(cols < count, ERR_INVALID, "step_result: a row of the ring holds %lld numbers; expected at least %lld", (long long)cols,
            (long long)count);
    node->out[0]->type = node->in[IN_RING]->type;
    return OK;
}

static OpCost step_result_cost(const Node *node)
{
    return (OpCost){.bytes = 2 * (RESULT_SCALARS + scalars_of(node)) * (double)sizeof(float)};
}

static Status step_result_cpu(const KernelArgs *args)
{
    uint64_t row = (uint64_t)((const int64_t *)args->in[IN_STEP].data)[STEP_INDEX] % RESULT_ROWS;
    float   *out = (float *)args->out[0].data + row * (uint64_t)type_cols(&args->out[0].type);
    out[RESULT_LOSS] = *(const float *)args->in[IN_LOSS].data;
    out[RESULT_NORM2] = *(const float *)args->in[IN_NORM2].data;
    out[RESULT_APPLIED] = *(const float *)args->in[IN_APPLIED].data;
    for (int i = 0; i < MOST_SCALARS && args->in[IN_SCALARS + i].data; i++)
        out[RESULT_SCALARS + i] = *(const float *)args->in[IN_SCALARS + i].data;
    return OK;
}

const OpDef op_step_result = {
    .id = OP_STEP_RESULT,
    .name = "step_result",
    .synopsis = "ring[step mod RESULT_ROWS] = loss, norm2, applied and the named scalars",
    .num_in = IN_SCALARS + MOST_SCALARS,
    .num_out = 1,
    .min_in = IN_SCALARS,
    .alias = {{.out = 0, .in = IN_RING}},
    .num_alias = 1,
    .infer = step_result_infer,
    .cost = step_result_cost,
    .cpu = {{DT_SET_F32, step_result_cpu, "reference"}},
    .samples = "[1], [1], [1], i64[4] below=99, [4,3]\n"
               "[1], [1], [1], i64[4] below=99, [4,5], [1], [1]\n",
};
