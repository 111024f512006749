/* mul: a b, element by element: gates, squares. */
#include "ops/infer.h"

/* a, b of the same dims -> a's type. */
static Status mul_infer(Node *node)
{
    TRY(infer_float(node, 0, "a", 1));
    TRY(infer_like(node, 1, "b", DT_SET_FLOAT, &node->in[0]->type));
    node->out[0]->type = node->in[0]->type;
    return OK;
}

static Status mul_backward(GradBuilder *grad, const Node *node)
{
    Value *dy = grad_of(grad, node->out[0]);
    for (int k = 0; k < 2; k++) {
        Value *in[] = {dy, node->in[1 - k]}, *dx;
        if (!grad_wanted(grad, node->in[k])) continue;
        TRY(grad_emit(grad, OP_MUL, NULL, in, 2, ~0u, &dx));
        TRY(grad_add(grad, node->in[k], dx));
    }
    return OK;
}

static OpCost mul_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[0]->type));
}

enum { MUL_PER_TASK = 16 * TILE };

static void mul_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    int64_t           end = min_i64(type_numel(&args->out[0].type), (task + 1) * MUL_PER_TASK);
    float             scratch_a[TILE], scratch_b[TILE], scratch_y[TILE];
    (void)worker;
    for (int64_t at = task * MUL_PER_TASK; at < end; at += TILE) {
        int64_t      n = min_i64(TILE, end - at);
        const float *a = tile_load(&args->in[0], at, n, scratch_a), *b = tile_load(&args->in[1], at, n, scratch_b);
        float       *y = tile_result(&args->out[0], at, scratch_y);
        for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
        tile_store(&args->out[0], at, y, n);
    }
}

static Status mul_cpu(const KernelArgs *args)
{
    pool_run(args->pool, div_up(type_numel(&args->out[0].type), MUL_PER_TASK), mul_task, (void *)args);
    return OK;
}

static const OpSample mul_samples[] = {
    {.in = {{DT_F32, 1, {9}}, {DT_F32, 1, {9}}}},
    {.in = {{DT_F32, 3, {3, 35, 333}}, {DT_F32, 3, {3, 35, 333}}}},
};

/* Shapes of real models. */
static const OpSample mul_large_samples[] = {
    {.in = {{DT_F32, 3, {2, 300, 1024}}, {DT_F32, 3, {2, 300, 1024}}}},
};

const OpDef op_mul = {
    .id = OP_MUL,
    .name = "mul",
    .synopsis = "y = a b",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .inplace = 1u << 0 | 1u << 1,
    .infer = mul_infer,
    .backward = mul_backward,
    .cost = mul_cost,
    .cpu = {{DT_SET_FLOAT, mul_cpu, "reference"}},
    .samples = mul_samples,
    .num_samples = sizeof mul_samples / sizeof mul_samples[0],
    .large = mul_large_samples,
    .num_large = sizeof mul_large_samples / sizeof mul_large_samples[0],
};
