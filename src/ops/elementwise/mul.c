/* mul: a b, element by element; used for gates and squares. */
#include "ops/elementwise/elementwise.h"

/* a, b -> y of the dims that both broadcast to, in a's dtype. */
static Status mul_infer(Node *node)
{
    static const char *const names[] = {"a", "b"};
    node->out[0]->type.dtype = node->in[0]->type.dtype;
    return infer_broadcast(node, 2, names, &node->out[0]->type);
}

static Status mul_backward(GradBuilder *grad, const Node *node)
{
    Value *dy = grad_of(grad, node->out[0]);
    for (int k = 0; k < 2; k++) {
        Value *in[] = {dy, node->in[1 - k]}, *dx;
        if (!grad_wanted(grad, node->in[k])) continue;
        TRY(grad_emit(grad, OP_MUL, NULL, in, 2, ~0u, &dx));
        bool same = type_same_dims(&node->in[0]->type, &node->in[1]->type);
        TRY(same ? grad_add(grad, node->in[k], dx) : grad_add_broadcast(grad, node->in[k], dx));
    }
    return OK;
}

static OpCost mul_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->out[0]->type));
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

static void mul_spread(float *y, const float *const *in, int64_t count, double number)
{
    (void)number;
    for (int64_t i = 0; i < count; i++) y[i] = in[0][i] * in[1][i];
}

static Status mul_cpu(const KernelArgs *args)
{
    if (!type_same_dims(&args->in[0].type, &args->in[1].type))
        broadcast_cpu(args, mul_spread, 0);
    else
        pool_run(args->pool, div_up(type_numel(&args->out[0].type), MUL_PER_TASK), mul_task, (void *)args);
    return OK;
}

const OpDef op_mul = {
    .id = OP_MUL,
    .name = "mul",
    .synopsis = "y = a b",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .inplace = 1u << 0 | 1u << 1,
    .by_row = 1u << 0 | 1u << 1,
    .by_element = true,
    .infer = mul_infer,
    .backward = mul_backward,
    .cost = mul_cost,
    .cpu = {{DT_SET_DECODE, mul_cpu, "reference"}},
    .tile = mul_spread,
    .samples = "[9], [9]\n"
               "[3,35,333], [3,35,333]\n"
               "[3,5,37], [3,5,1]\n"
               "[1], [3,5,37]\n",
    .large = "[2,300,1024], [2,300,1024]\n",
};
