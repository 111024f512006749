/* all_reduce: sum or maximum of x over all ranks. Every rank gets the result, in x's memory. */
#include "ops/ranks/collective.h"

static const AttrDef all_reduce_attrs[] = {ATTR_INT(AllReduceAttrs, ranks, 1), ATTR_BOOL(AllReduceAttrs, max, false), {0}};

/* x (n) -> x' in place. */
static Status all_reduce_infer(Node *node)
{
    const AllReduceAttrs *attrs = node->attrs;
    TRY(infer_ranks(attrs->ranks));
    TRY(infer_input(node, 0, "x", DT_SET_FLOAT, DIMS(-1)));
    node->out[0]->type = node->in[0]->type;
    return OK;
}

static OpCost all_reduce_cost(const Node *node)
{
    const AllReduceAttrs *attrs = node->attrs;
    const TensorType     *x = &node->in[0]->type;
    return cost_collective(node, (double)type_numel(x), attrs->ranks, 2 * (double)type_bytes(x)); /* as a reduce_scatter and a gather */
}

static size_t all_reduce_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    int64_t ranks = ((const AllReduceAttrs *)node->attrs)->ranks;
    return ranks > 1 ? (size_t)(ranks * type_bytes(&node->in[0]->type)) : 0;
}

static Status all_reduce_cpu(const KernelArgs *args)
{
    const AllReduceAttrs *attrs = args->attrs;
    const TensorType     *type = &args->out[0].type;
    TRY(check_ranks(args, attrs->ranks));
    return comm_all_reduce(args->comm, args->out[0].data, type_numel(type), type->dtype, attrs->max ? COMM_MAX : COMM_SUM);
}

const OpDef op_all_reduce = {
    .id = OP_ALL_REDUCE,
    .name = "all_reduce",
    .synopsis = "the sum, or the maximum, over ranks",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .alias = {{.out = 0, .in = 0}},
    .num_alias = 1,
    .flags = OP_COLLECTIVE,
    .attrs_size = sizeof(AllReduceAttrs),
    .attrs = all_reduce_attrs,
    .infer = all_reduce_infer,
    .cost = all_reduce_cost,
    .gpu_workspace = all_reduce_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, all_reduce_cpu, "reference"}},
    .samples = "[37]\n",
};
