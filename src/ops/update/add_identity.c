/* add_identity: a I + b x for a square matrix x. Added to a product, it makes a polynomial of x. */
#include "ops/infer.h"

static const AttrDef add_identity_attrs[] = {ATTR_FLOAT(AddIdentityAttrs, a, 1), ATTR_FLOAT(AddIdentityAttrs, b, 1), {0}};

/* x (N,N) -> (N,N) of x's dtype. */
static Status add_identity_infer(Node *node)
{
    TRY(infer_input(node, 0, "x", DT_SET_FLOAT, DIMS(-1, -1)));
    const TensorType *x = &node->in[0]->type;
    FAIL_IF(x->dim[0] != x->dim[1], ERR_INVALID, "x has %lld rows and %lld columns, expected a square matrix", (long long)x->dim[0],
            (long long)x->dim[1]);
    node->out[0]->type = *x;
    return OK;
}

static OpCost add_identity_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[0]->type));
}

VEC_TASK(add_identity_task)
{
    const KernelArgs       *args = context;
    const AddIdentityAttrs *attrs = args->attrs;
    int64_t                 n = args->in[0].type.dim[0], rows = rows_per_task(n), end = min_i64(n, (task + 1) * rows);
    float                   a = (float)attrs->a, b = (float)attrs->b, scratch[TILE], y[TILE];
    (void)worker;
    for (int64_t row = task * rows; row < end; row++)
        for (int64_t col = 0; col < n; col += TILE) {
            int64_t      count = min_i64(TILE, n - col);
            const float *x = tile_load(&args->in[0], row * n + col, count, scratch);
            for (int64_t i = 0; i < count; i++) y[i] = b * x[i];
            if (row >= col && row < col + count) y[row - col] += a;
            tile_store(&args->out[0], row * n + col, y, count);
        }
}

static Status add_identity_cpu(const KernelArgs *args)
{
    int64_t n = args->in[0].type.dim[0];
    pool_run(args->pool, div_up(n, rows_per_task(n)), add_identity_task, (void *)args);
    return OK;
}

const OpDef op_add_identity = {
    .id = OP_ADD_IDENTITY,
    .name = "add_identity",
    .synopsis = "a I + b x",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .attrs_size = sizeof(AddIdentityAttrs),
    .attrs = add_identity_attrs,
    .infer = add_identity_infer,
    .cost = add_identity_cost,
    .cpu = {{DT_SET_FLOAT, add_identity_cpu, "reference"}},
    .samples = "[5,5] {a=8.156554524902461, b=-22.48329292557795}\n"
               "[200,200] {a=8.156554524902461, b=-22.48329292557795}\n",
    .large = "[1024,1024] {a=8.156554524902461, b=-22.48329292557795}\n",
};
