/* gather_row: one row of each sequence, y[b,0] = x[b, index[b]]. Used for the last token of each prompt, whose logits are wanted. */
#include "ops/infer.h"

/* x (B,T,C), index i32 (B) -> y (B,1,C). */
static Status gather_row_infer(Node *node)
{
    TRY(infer_input(node, 0, "x", DT_SET_DECODE, DIMS(-1, -1, -1)));
    const TensorType *x = &node->in[0]->type;
    TRY(infer_input(node, 1, "index", DT_SET(DT_I32), DIMS(x->dim[0])));
    node->out[0]->type = type_make(x->dtype, 3, x->dim[0], INT64_C(1), x->dim[2]);
    return OK;
}

static OpCost gather_row_cost(const Node *node)
{
    return (OpCost){.bytes = 2.0 * (double)type_bytes(&node->in[0]->type) / (double)node->in[0]->type.dim[1]};
}

static Status gather_row_cpu(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *y = &args->out[0];
    const int32_t    *index = args->in[1].data;
    int64_t           len = x->type.dim[1], cols = x->type.dim[2];
    for (int64_t b = 0; b < x->type.dim[0]; b++) {
        FAIL_IF(index[b] < 0 || index[b] >= len, ERR_INVALID, "index %d of sequence %lld is outside its %lld rows", index[b], (long long)b,
                (long long)len);
        tile_copy(y, b * cols, x, (b * len + index[b]) * cols, cols);
    }
    return OK;
}

const OpDef op_gather_row = {
    .id = OP_GATHER_ROW,
    .name = "gather_row",
    .synopsis = "y[b,0] = x[b, index[b]]",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .infer = gather_row_infer,
    .cost = gather_row_cost,
    .cpu = {{DT_SET_DECODE, gather_row_cpu, "reference"}},
    .samples = "[2,5,12], i32[2] below=5\n"
               "[3,9,1030], i32[3] below=9\n",
    .large = "[4,100,1024], i32[4] below=100\n",
};
