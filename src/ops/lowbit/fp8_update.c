/* fp8_update: delayed scaling after an optimizer step, of S tensors at once (Micikevicius 2022).
 *
 *   history[steps applied before this one mod H] = now       the largest magnitudes of this step; 0 if not finite
 *   amax = the largest of the tensor's column of history     most_recent: the magnitude just written there
 *   scale = most / amax / 2^margin                           unchanged if amax is 0 or not finite
 *   now = 0
 *
 * A step that isn't applied changes neither history nor scales. */
#include "ops/lowbit/fp8_update.h"

#include "ops/infer.h"

static const AttrDef fp8_update_attrs[] = {ATTR_INT(Fp8UpdateAttrs, margin, 0), ATTR_BOOL(Fp8UpdateAttrs, most_recent, false), {0}};

/* now f32 (S), history f32 (H,S), scales f32 (S,4), most f32 (S), applied f32 (1), count i64 (1), the last two made by step_scalars ->
 * now', history', scales' in place. */
static Status fp8_update_infer(Node *node)
{
    const Fp8UpdateAttrs *attrs = node->attrs;
    FAIL_IF(attrs->margin < 0 || attrs->margin > FP8_MOST_MARGIN, ERR_INVALID, "margin is %lld; expected 0 to %d", (long long)attrs->margin,
            FP8_MOST_MARGIN);
    TRY(infer_input(node, UPDATE_IN_NOW, "now", DT_SET_F32, DIMS(-1)));
    int64_t tensors = node->in[UPDATE_IN_NOW]->type.dim[0];
    TRY(infer_input(node, UPDATE_IN_HISTORY, "history", DT_SET_F32, DIMS(-1, tensors)));
    TRY(infer_input(node, UPDATE_IN_SCALES, "scales", DT_SET_F32, DIMS(tensors, FP8_SCALE_FLOATS)));
    TRY(infer_input(node, UPDATE_IN_MOST, "most", DT_SET_F32, DIMS(tensors)));
    TRY(infer_input(node, UPDATE_IN_APPLIED, "applied", DT_SET_F32, DIMS(1)));
    TRY(infer_input(node, UPDATE_IN_COUNT, "count", DT_SET(DT_I64), DIMS(1)));
    for (int k = UPDATE_OUT_NOW; k <= UPDATE_OUT_SCALES; k++) node->out[k]->type = node->in[k]->type;
    return OK;
}

static OpCost fp8_update_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[UPDATE_IN_HISTORY]->type));
}

enum { PER_TASK = 64 };

static void update_task(void *context, int64_t task, int worker)
{
    const KernelArgs     *args = context;
    const Fp8UpdateAttrs *attrs = args->attrs;
    const float          *history = args->in[UPDATE_IN_HISTORY].data;
    int64_t               rows = args->in[UPDATE_IN_HISTORY].type.dim[0], tensors = args->in[UPDATE_IN_NOW].type.dim[0];
    int64_t               begin = task * PER_TASK, count = min_i64(PER_TASK, tensors - begin);
    int64_t               row = fp8_update_row(args->in, rows);
    float                 amax[PER_TASK];
    (void)worker;
    for (int64_t i = 0; i < count; i++) amax[i] = fp8_update_now(args->in, begin + i);
    for (int64_t r = 0; r < rows && row >= 0 && !attrs->most_recent; r++)
        for (int64_t i = 0; i < count && r != row; i++) amax[i] = fmaxf(amax[i], history[r * tensors + begin + i]);
    for (int64_t i = 0; i < count; i++) fp8_update_tensor(attrs, args->in, args->out, begin + i, row, amax[i]);
}

static Status fp8_update_cpu(const KernelArgs *args)
{
    pool_run(args->pool, div_up(args->in[UPDATE_IN_NOW].type.dim[0], PER_TASK), update_task, (void *)args);
    return OK;
}

const OpDef op_fp8_update = {
    .id = OP_FP8_UPDATE,
    .name = "fp8_update",
    .synopsis = "a row of history = now, scales = most / largest of history / 2^margin, now = 0; a step that isn't applied only "
                "sets now = 0",
    .num_in = 6,
    .num_out = 3,
    .min_in = 6,
    .alias = {{.out = UPDATE_OUT_NOW, .in = UPDATE_IN_NOW},
              {.out = UPDATE_OUT_HISTORY, .in = UPDATE_IN_HISTORY},
              {.out = UPDATE_OUT_SCALES, .in = UPDATE_IN_SCALES}},
    .num_alias = 3,
    .attrs_size = sizeof(Fp8UpdateAttrs),
    .attrs = fp8_update_attrs,
    .infer = fp8_update_infer,
    .cost = fp8_update_cost,
    .cpu = {{DT_SET_FLOAT, fp8_update_cpu, "reference"}},
    .holds = {[UPDATE_IN_NOW] = HOLDS_SQUARES,
              [UPDATE_IN_HISTORY] = HOLDS_SQUARES,
              [UPDATE_IN_SCALES] = HOLDS_SCALE,
              [UPDATE_IN_MOST] = HOLDS_SQUARES},
    .samples = "[1], [1,1], [1,4], [1], [1], i64[1] below=1000\n"
               "[150], [5,150], [150,4], [150], [1], i64[1] below=1000 {margin=3, most_recent=true}\n"
               "[33], [70,33], [33,4], [33], [1], i64[1] below=1000\n",
    .large = "[756], [1024,756], [756,4], [756], [1], i64[1] below=1000\n",
};
