/* all_to_all: x has one part for each rank; each rank gets its part of every rank's x, in the order of ranks. Say x holds this rank's
 * shares of several matrices, one for each rank. Then the result is one whole matrix, and another all_to_all turns it into shares again. */
#include "ops/ranks/collective.h"

static const AttrDef all_to_all_attrs[] = {ATTR_INT(RanksAttrs, ranks, 1), {0}};

/* x (ranks * n) -> y (ranks * n). */
static Status all_to_all_infer(Node *node)
{
    const RanksAttrs *attrs = node->attrs;
    TRY(infer_ranks(attrs->ranks));
    TRY(infer_input(node, 0, "x", DT_SET_FLOAT, DIMS(-1)));
    const TensorType *x = &node->in[0]->type;
    FAIL_IF(x->dim[0] % attrs->ranks, ERR_INVALID, "x has %lld elements, which aren't a part of equal size for each of %lld ranks",
            (long long)x->dim[0], (long long)attrs->ranks);
    node->out[0]->type = *x;
    return OK;
}

static OpCost all_to_all_cost(const Node *node)
{
    const RanksAttrs *attrs = node->attrs;
    return cost_collective(node, 0, attrs->ranks, (double)type_bytes(&node->out[0]->type));
}

/* Room for parts that this rank has to gather but doesn't keep. */
static size_t all_to_all_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return (size_t)type_bytes(&node->out[0]->type);
}

static size_t all_to_all_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    const RanksAttrs *attrs = node->attrs;
    return attrs->ranks > 1 ? all_to_all_workspace(node, 1) : 0;
}

static Status all_to_all_cpu(const KernelArgs *args)
{
    const RanksAttrs *attrs = args->attrs;
    size_t            part = (size_t)(type_bytes(&args->in[0].type) / attrs->ranks);
    TRY(check_ranks(args, attrs->ranks));
    for (int64_t r = 0; r < attrs->ranks; r++) {
        void *to = r == comm_rank(args->comm) ? args->out[0].data : args->workspace;
        TRY(comm_all_gather(args->comm, (const char *)args->in[0].data + (size_t)r * part, to, part));
    }
    return OK;
}

const OpDef op_all_to_all = {
    .id = OP_ALL_TO_ALL,
    .name = "all_to_all",
    .synopsis = "y = this rank's part of each rank's x, in the ranks' order",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .flags = OP_COLLECTIVE,
    .attrs_size = sizeof(RanksAttrs),
    .attrs = all_to_all_attrs,
    .infer = all_to_all_infer,
    .cost = all_to_all_cost,
    .workspace = all_to_all_workspace,
    .gpu_workspace = all_to_all_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, all_to_all_cpu, "reference"}},
    .samples = "[1003]\n",
};
