/* add: a + b, element by element. */
#include "ops/elementwise/elementwise.h"

static Status add_backward(GradBuilder *grad, const Node *node)
{
    Value *dy = grad_of(grad, node->out[0]);
    for (int k = 0; k < 2; k++) {
        bool same = type_same_dims(&node->in[k]->type, &node->out[0]->type);
        TRY(same ? grad_add(grad, node->in[k], dy) : grad_add_broadcast(grad, node->in[k], dy));
    }
    return OK;
}

VEC_ROW void add_tile(DType dtype, void *y, const void *a, const void *b, int64_t count)
{
    VEC_EACH(dtype, y, count, i, n, vec8_some(dtype, a, i, n) + vec8_some(dtype, b, i, n));
}

VEC_TASK(add_task)
{
    const KernelArgs *args = context;
    const TensorView *a = &args->in[0], *b = &args->in[1], *y = &args->out[0];
    int64_t           end = min_i64(type_numel(&y->type), (task + 1) * ELEMENTS_PER_TASK);
    float             scratch_a[TILE], scratch_b[TILE], scratch_y[TILE];
    DType             dtype = TILE_DTYPE(a, b, y);
    (void)worker;
    for (int64_t at = task * ELEMENTS_PER_TASK; at < end; at += TILE) {
        int64_t n = min_i64(TILE, end - at);
        void   *result = tile_out(y, dtype, at, scratch_y);
        VEC_OF(dtype, add_tile, result, tile_in(a, dtype, at, n, scratch_a), tile_in(b, dtype, at, n, scratch_b), n);
        tile_done(y, dtype, at, result, n);
    }
}

static void add_spread(float *y, const float *const *in, int64_t count, double number)
{
    (void)number;
    for (int64_t i = 0; i < count; i++) y[i] = in[0][i] + in[1][i];
}

static Status add_cpu(const KernelArgs *args)
{
    if (!type_same_dims(&args->in[0].type, &args->in[1].type))
        broadcast_cpu(args, add_spread, 0);
    else
        return tiles_run(args, add_task);
    return OK;
}

const OpDef op_add = {
    .id = OP_ADD,
    .name = "add",
    .synopsis = "y = a + b",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .inplace = 1u << 0 | 1u << 1,
    .by_row = 1u << 0 | 1u << 1,
    .by_element = true,
    .infer = pair_infer,
    .backward = add_backward,
    .cost = pair_cost,
    .cpu = {{DT_SET_DECODE, add_cpu, "reference"}},
    .tile = add_spread,
    .samples = "[9], [9]\n"
               "[3,35,333], [3,35,333]\n"
               "[3,5,37], [3,5,1]\n"
               "[1], [3,5,37]\n",
    .large = "[2,300,1024], [2,300,1024]\n",
};
