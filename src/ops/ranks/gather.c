/* gather: concatenates the shares of all ranks, in the order of ranks, for any dtype. Every rank gets the result. */
#include "ops/ranks/collective.h"

static const AttrDef gather_attrs[] = {ATTR_INT(RanksAttrs, ranks, 1), {0}};

/* share (n) -> whole (ranks * n). */
static Status gather_infer(Node *node)
{
    const RanksAttrs *attrs = node->attrs;
    TRY(infer_ranks(attrs->ranks));
    TRY(infer_input(node, 0, "share", DT_SET_ANY, DIMS(-1)));
    node->out[0]->type = node->in[0]->type;
    node->out[0]->type.dim[0] *= attrs->ranks;
    return OK;
}

static OpCost gather_cost(const Node *node)
{
    const RanksAttrs *attrs = node->attrs;
    return cost_collective(node, 0, attrs->ranks, (double)type_bytes(&node->out[0]->type));
}

static Status gather_cpu(const KernelArgs *args)
{
    const RanksAttrs *attrs = args->attrs;
    TRY(check_ranks(args, attrs->ranks));
    return comm_all_gather(args->comm, args->in[0].data, args->out[0].data, (size_t)type_bytes(&args->in[0].type));
}

const OpDef op_gather = {
    .id = OP_GATHER,
    .name = "gather",
    .synopsis = "whole = the shares of all ranks, in their order",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .flags = OP_COLLECTIVE,
    .attrs_size = sizeof(RanksAttrs),
    .attrs = gather_attrs,
    .infer = gather_infer,
    .cost = gather_cost,
    .cpu = {{DT_SET_ANY, gather_cpu, "reference"}},
    .samples = "[1003]\n",
};
