/* reduce_scatter: sums x over all ranks; each rank keeps its share of the sum. */
#include "ops/ranks/collective.h"
#include "ops/ranks/reduce_pieces.h"

static const AttrDef reduce_scatter_attrs[] = {ATTR_INT(RanksAttrs, ranks, 1), {0}};

/* x (...) of ranks * n elements, [acc (n)] -> (n). */
static Status reduce_scatter_infer(Node *node)
{
    const RanksAttrs *attrs = node->attrs;
    TRY(infer_ranks(attrs->ranks));
    TRY(infer_float(node, 0, "x", 1));
    const TensorType *x = &node->in[0]->type;
    int64_t           numel = type_numel(x);
    FAIL_IF(numel % attrs->ranks, ERR_INVALID, "x has %lld elements, which %lld ranks can't share equally", (long long)numel,
            (long long)attrs->ranks);
    node->out[0]->type = type_make(x->dtype, 1, numel / attrs->ranks);
    if (node->in[1]) TRY(infer_like(node, 1, "acc", DT_SET(x->dtype), &node->out[0]->type));
    return OK;
}

static OpCost reduce_scatter_cost(const Node *node)
{
    const RanksAttrs *attrs = node->attrs;
    const TensorType *x = &node->in[0]->type;
    return cost_collective(node, (double)type_numel(x), attrs->ranks, (double)type_bytes(x));
}

/* Room for the sum before it is added to acc. */
static size_t reduce_scatter_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return node->in[1] ? (size_t)type_bytes(&node->out[0]->type) : 0;
}

/* The larger workspace of the two GPU kernels: the machine decides which one runs. */
static size_t reduce_scatter_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    const RanksAttrs *attrs = node->attrs;
    size_t            adds = reduce_scatter_workspace(node, 1), pieces = attrs->ranks > 1 ? reduce_pieces_bytes(node, attrs->ranks) : 0;
    return adds > pieces ? adds : pieces;
}

static Status reduce_scatter_cpu(const KernelArgs *args)
{
    const RanksAttrs *attrs = args->attrs;
    const TensorView *out = &args->out[0];
    int64_t           numel = type_numel(&out->type);
    TensorView        sum = {.data = args->accumulate & 1 ? args->workspace : out->data, .type = out->type};
    float             scratch[TILE];
    TRY(check_ranks(args, attrs->ranks));
    TRY(comm_reduce_scatter(args->comm, args->in[0].data, sum.data, numel, out->type.dtype, COMM_SUM));
    for (int64_t at = 0; at < numel && args->accumulate & 1; at += TILE) {
        int64_t n = min_i64(TILE, numel - at);
        tile_add(out, at, tile_load(&sum, at, n, scratch), n);
    }
    return OK;
}

const OpDef op_reduce_scatter = {
    .id = OP_REDUCE_SCATTER,
    .name = "reduce_scatter",
    .synopsis = "this rank's share of the sum over ranks",
    .num_in = 2,
    .num_out = 1,
    .min_in = 1,
    .alias = {{.out = 0, .in = 1, .accumulate = true}},
    .num_alias = 1,
    .flags = OP_COLLECTIVE,
    .attrs_size = sizeof(RanksAttrs),
    .attrs = reduce_scatter_attrs,
    .infer = reduce_scatter_infer,
    .cost = reduce_scatter_cost,
    .workspace = reduce_scatter_workspace,
    .gpu_workspace = reduce_scatter_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, reduce_scatter_cpu, "reference"}},
    .samples = "[17,59]\n"
               "[1003], [1003]\n",
};
