/* fp8_own_scale: the scale that maps x's own largest magnitude to the largest code divided by 2^margin (ops/lowbit/fp8.h). If x has only
 * zeros, or an element that isn't finite, the scale stays as it was. */
#include "ops/infer.h"
#include "ops/lowbit/fp8.h"

static const AttrDef fp8_own_scale_attrs[] = {ATTR_DTYPE(Fp8OwnScaleAttrs, dtype), ATTR_INT(Fp8OwnScaleAttrs, margin, 0), {0}};

enum { IN_X, IN_SCALE };

/* x (...), scale f32 (4) -> scale' in place. */
static Status fp8_own_scale_infer(Node *node)
{
    const Fp8OwnScaleAttrs *attrs = node->attrs;
    DType                   dtype = fp8_dtype(attrs->dtype);
    FAIL_IF(!(DT_SET(dtype) & DT_SET_FP8), ERR_INVALID, "dtype is %s; expected e4m3 or e5m2", dtype_info(dtype)->name);
    FAIL_IF(attrs->margin < 0 || attrs->margin > FP8_MOST_MARGIN, ERR_INVALID, "margin is %lld; expected 0 to %d", (long long)attrs->margin,
            FP8_MOST_MARGIN);
    TRY(infer_float(node, IN_X, "x", 1));
    TRY(infer_input(node, IN_SCALE, "scale", DT_SET_F32, DIMS(FP8_SCALE_FLOATS)));
    node->out[0]->type = node->in[IN_SCALE]->type;
    return OK;
}

static OpCost fp8_own_scale_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[IN_X]->type));
}

/* Room for the largest magnitude of each part of x, on the CPU and CUDA. */
static size_t fp8_own_scale_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    return (size_t)div_up(type_numel(&node->in[IN_X]->type), FP8_SCALE_PART) * sizeof(uint32_t);
}

static size_t fp8_own_scale_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return fp8_own_scale_gpu_workspace(node, 0);
}

static void largest_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[IN_X];
    int64_t           begin = task * FP8_SCALE_PART, end = min_i64(type_numel(&x->type), begin + FP8_SCALE_PART);
    uint32_t          most = 0;
    float             scratch[TILE];
    (void)worker;
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t count = min_i64(TILE, end - at);
        most = most_magnitude(most, tile_load(x, at, count, scratch), count);
    }
    ((uint32_t *)args->workspace)[task] = most;
}

static Status fp8_own_scale_cpu(const KernelArgs *args)
{
    const Fp8OwnScaleAttrs *attrs = args->attrs;
    const uint32_t         *parts = args->workspace;
    int64_t                 tasks = div_up(type_numel(&args->in[IN_X].type), FP8_SCALE_PART);
    uint32_t                most = 0;
    pool_run(args->pool, tasks, largest_task, (void *)args);
    for (int64_t i = 0; i < tasks; i++) most = parts[i] > most ? parts[i] : most;
    if (args->out[0].data) fp8_scale_follow(args->out[0].data, small_value(most), fp8_most(fp8_dtype(attrs->dtype)), attrs->margin);
    return OK;
}

const OpDef op_fp8_own_scale = {
    .id = OP_FP8_OWN_SCALE,
    .name = "fp8_own_scale",
    .synopsis = "scale = largest code / max |x| / 2^margin; unchanged if max |x| is 0 or not finite",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .alias = {{.out = 0, .in = IN_SCALE}},
    .num_alias = 1,
    .attrs_size = sizeof(Fp8OwnScaleAttrs),
    .attrs = fp8_own_scale_attrs,
    .infer = fp8_own_scale_infer,
    .cost = fp8_own_scale_cost,
    .workspace = fp8_own_scale_workspace,
    .gpu_workspace = fp8_own_scale_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, fp8_own_scale_cpu, "reference"}},
    .holds = {[IN_SCALE] = HOLDS_SCALE},
    .samples = "[1], [4]\n"
               "[2,30,17], [4] {dtype=e5m2, margin=2}\n"
               "[151,1037], [4]\n",
    .large = "[4096,1024], [4]\n",
};
