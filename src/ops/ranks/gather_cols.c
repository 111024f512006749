/* gather_cols: all ranks' shares beside one another, in the order of ranks, of any dtype: on each rank. */
#include "ops/ranks/collective.h"

#include <string.h>

static const AttrDef gather_cols_attrs[] = {ATTR_INT(RanksAttrs, ranks, 1), {0}};

/* share (rows, n) -> whole (rows, ranks n). */
static Status gather_cols_infer(Node *node)
{
    const RanksAttrs *attrs = node->attrs;
    TRY(infer_ranks(attrs->ranks));
    TRY(infer_input(node, 0, "share", DT_SET_ANY, DIMS(-1, -1)));
    node->out[0]->type = node->in[0]->type;
    node->out[0]->type.dim[1] *= attrs->ranks;
    return OK;
}

static OpCost gather_cols_cost(const Node *node)
{
    const RanksAttrs *attrs = node->attrs;
    return cost_collective(node, 0, attrs->ranks, (double)type_bytes(&node->out[0]->type));
}

/* The shares one after the other. */
static size_t gather_cols_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return (size_t)type_bytes(&node->out[0]->type);
}

static size_t gather_cols_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    return ((const RanksAttrs *)node->attrs)->ranks > 1 ? gather_cols_workspace(node, 1) : 0;
}

static Status gather_cols_cpu(const KernelArgs *args)
{
    const RanksAttrs *attrs = args->attrs;
    const TensorView *share = &args->in[0];
    size_t            bytes = (size_t)type_bytes(&share->type), row = (size_t)dtype_bytes(share->type.dtype, share->type.dim[1]);
    TRY(check_ranks(args, attrs->ranks));
    TRY(comm_all_gather(args->comm, share->data, args->workspace, bytes));
    for (int64_t r = 0; r < attrs->ranks; r++)
        for (int64_t i = 0; i < share->type.dim[0]; i++)
            memcpy((char *)args->out[0].data + (size_t)(i * attrs->ranks + r) * row,
                   (const char *)args->workspace + (size_t)r * bytes + (size_t)i * row, row);
    return OK;
}

static const OpSample gather_cols_samples[] = {
    {.in = {{DT_F32, 2, {5, 203}}}},
};

const OpDef op_gather_cols = {
    .id = OP_GATHER_COLS,
    .name = "gather_cols",
    .synopsis = "the shares of all ranks beside one another, in their order",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .flags = OP_COLLECTIVE,
    .attrs_size = sizeof(RanksAttrs),
    .attrs = gather_cols_attrs,
    .infer = gather_cols_infer,
    .cost = gather_cols_cost,
    .workspace = gather_cols_workspace,
    .gpu_workspace = gather_cols_gpu_workspace,
    .cpu = {{DT_SET_ANY, gather_cols_cpu, "reference"}},
    .samples = gather_cols_samples,
    .num_samples = sizeof gather_cols_samples / sizeof gather_cols_samples[0],
};
