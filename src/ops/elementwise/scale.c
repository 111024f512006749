/* scale: a number times x, element by element. */
#include "ops/infer.h"

static const AttrDef scale_attrs[] = {ATTR_FLOAT(ScaleAttrs, by, 1), {0}};

/* x (...) -> y of x's type. */
static Status scale_infer(Node *node)
{
    TRY(infer_float(node, 0, "x", 1));
    node->out[0]->type = node->in[0]->type;
    return OK;
}

static Status scale_backward(GradBuilder *grad, const Node *node)
{
    Value *dy = grad_of(grad, node->out[0]), *dx;
    TRY(grad_emit(grad, OP_SCALE, node->attrs, &dy, 1, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static OpCost scale_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[0]->type));
}

static void scale_tile(float *y, const float *const *in, int64_t count, double number)
{
    float by = (float)number;
    for (int64_t i = 0; i < count; i++) y[i] = by * in[0][i];
}

enum { SCALE_PER_TASK = 16 * TILE };

VEC_TASK(scale_task)
{
    const KernelArgs *args = context;
    float             scratch_x[TILE], scratch_y[TILE];
    int64_t           end = min_i64(type_numel(&args->out[0].type), (task + 1) * SCALE_PER_TASK);
    (void)worker;
    for (int64_t at = task * SCALE_PER_TASK; at < end; at += TILE) {
        int64_t      n = min_i64(TILE, end - at);
        const float *x = tile_load(&args->in[0], at, n, scratch_x);
        float       *y = tile_result(&args->out[0], at, scratch_y);
        scale_tile(y, &x, n, ((const ScaleAttrs *)args->attrs)->by);
        tile_store(&args->out[0], at, y, n);
    }
}

static Status scale_cpu(const KernelArgs *args)
{
    pool_run(args->pool, div_up(type_numel(&args->out[0].type), SCALE_PER_TASK), scale_task, (void *)args);
    return OK;
}

const OpDef op_scale = {
    .id = OP_SCALE,
    .name = "scale",
    .synopsis = "y = by * x",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .inplace = 1u << 0,
    .attrs_size = sizeof(ScaleAttrs),
    .attrs = scale_attrs,
    .by_row = 1u << 0,
    .by_element = true,
    .infer = scale_infer,
    .backward = scale_backward,
    .cost = scale_cost,
    .cpu = {{DT_SET_DECODE, scale_cpu, "reference"}},
    .tile = scale_tile,
    .samples = "[9] {by=-45.25}\n"
               "[3,35,333] {by=-45.25}\n",
    .large = "[2,300,2304] {by=-45.25}\n",
};
