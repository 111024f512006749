/* gather_cols: puts the shares of all ranks side by side as columns, in the order of ranks, for any dtype. Every rank gets the result.
 * The shares may fill just a part of the columns; another gather_cols fills the rest. */
#include "ops/ranks/collective.h"

#include <string.h>

static const AttrDef gather_cols_attrs[] = {
    ATTR_INT(GatherColsAttrs, ranks, 1), ATTR_INT(GatherColsAttrs, cols, 0), ATTR_INT(GatherColsAttrs, first, 0), {0}};

/* share (rows, n), [whole (rows, cols)] -> whole (rows, cols). */
static Status gather_cols_infer(Node *node)
{
    const GatherColsAttrs *attrs = node->attrs;
    TRY(infer_ranks(attrs->ranks));
    TRY(infer_input(node, 0, "share", DT_SET_ANY, DIMS(-1, -1)));
    TensorType whole = node->in[0]->type;
    int64_t    given = whole.dim[1] * attrs->ranks;
    whole.dim[1] = attrs->cols ? attrs->cols : given;
    FAIL_IF(attrs->first < 0 || attrs->first > whole.dim[1] - given, ERR_INVALID,
            "%lld columns from %lld on of %lld: attributes cols and first don't fit", (long long)given, (long long)attrs->first,
            (long long)whole.dim[1]);
    if (node->in[1]) TRY(infer_like(node, 1, "whole", DT_SET(whole.dtype), &whole));
    node->out[0]->type = whole;
    return OK;
}

static OpCost gather_cols_cost(const Node *node)
{
    const GatherColsAttrs *attrs = node->attrs;
    double                 bytes = (double)type_bytes(&node->in[0]->type) * (double)attrs->ranks;
    OpCost                 cost = cost_collective(node, 0, attrs->ranks, bytes);
    cost.bytes = 2 * bytes;
    return cost;
}

/* Room for the shares of all ranks, gathered one after another. */
static size_t gather_cols_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return (size_t)(type_bytes(&node->in[0]->type) * ((const GatherColsAttrs *)node->attrs)->ranks);
}

static size_t gather_cols_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    return ((const GatherColsAttrs *)node->attrs)->ranks > 1 ? gather_cols_workspace(node, 1) : 0;
}

static Status gather_cols_cpu(const KernelArgs *args)
{
    const GatherColsAttrs *attrs = args->attrs;
    const TensorView      *share = &args->in[0];
    DType                  dtype = share->type.dtype;
    size_t                 bytes = (size_t)type_bytes(&share->type), row = (size_t)dtype_bytes(dtype, share->type.dim[1]);
    size_t                 stride = (size_t)dtype_bytes(dtype, args->out[0].type.dim[1]), first = (size_t)dtype_bytes(dtype, attrs->first);
    TRY(check_ranks(args, attrs->ranks));
    TRY(comm_all_gather(args->comm, share->data, args->workspace, bytes));
    for (int64_t r = 0; r < attrs->ranks; r++)
        for (int64_t i = 0; i < share->type.dim[0]; i++)
            memcpy((char *)args->out[0].data + (size_t)i * stride + first + (size_t)r * row,
                   (const char *)args->workspace + (size_t)r * bytes + (size_t)i * row, row);
    return OK;
}

const OpDef op_gather_cols = {
    .id = OP_GATHER_COLS,
    .name = "gather_cols",
    .synopsis = "columns of whole = the shares of all ranks side by side, in their order",
    .num_in = 2,
    .num_out = 1,
    .min_in = 1,
    .flags = OP_COLLECTIVE,
    .alias = {{.out = 0, .in = 1}},
    .num_alias = 1,
    .attrs_size = sizeof(GatherColsAttrs),
    .attrs = gather_cols_attrs,
    .infer = gather_cols_infer,
    .cost = gather_cols_cost,
    .workspace = gather_cols_workspace,
    .gpu_workspace = gather_cols_gpu_workspace,
    .cpu = {{DT_SET_ANY, gather_cols_cpu, "reference"}},
    .samples = "[5,203]\n"
               "[5,203], [5,300] {cols=300, first=97}\n",
};
