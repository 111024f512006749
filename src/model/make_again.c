/* Runs on the CPU the two ops of a format: quantising and dequantising. */
#include "model/make_again.h"

#include "base/scoped.h"
#include "ops/attrs.h"
#include "ops/ops.h"

#include <stdlib.h>

enum { MOST_VALUES = 2 + FORMAT_MAX_PARTS }; /* most values of a graph with the two ops */

/* Runs the node's kernel; data[id] is the memory of the value `id`. */
static Status run_node(const Node *node, void *const *data, ThreadPool *pool)
{
    NodeArgs         storage;
    KernelArgs       args = *node_args(node, &storage);
    const CpuKernel *kernel = op_cpu_kernel(node);
    if (!kernel) return op_no_kernel(node, "CPU");
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i]) storage.in[i].data = data[node->in[i]->id];
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) storage.out[k].data = data[node->out[k]->id];
    args.pool = pool;
    args.workspace_bytes = node->op->workspace ? node->op->workspace(node, pool_num_workers(pool)) : 0;
    args.workspace = aligned_alloc(256, (args.workspace_bytes + 256) / 256 * 256);
    FAIL_IF(!args.workspace, ERR_NO_FIT, "no memory for %s", node->op->name);
    Status status = kernel->run(&args);
    free(args.workspace);
    return status;
}

/* Adds the node that quantises to the graph, allocates its outputs, and runs it on `values`. */
static Status quantise(Graph *graph, const WeightFormat *format, const TensorType *type, const float *values, ThreadPool *pool,
                       Node **out_node, void **data)
{
    Value *x = graph_add_value(graph, VALUE_INPUT, "x", type);
    TRY(graph_add_node(graph, format->quantise, format->attrs, "part", &x, 1, ~0u, out_node));
    for (int k = 0; k < format->num_parts; k++) {
        Value *part = (*out_node)->out[k];
        data[part->id] = arena_alloc(graph->arena, (size_t)type_bytes(&part->type));
    }
    data[x->id] = (void *)(uintptr_t)values; /* only read */
    return run_node(*out_node, data, pool);
}

Status weight_quantise(Arena *arena, const WeightFormat *format, int64_t rows, int64_t cols, const float *values, ThreadPool *pool,
                       void *parts[FORMAT_MAX_PARTS])
{
    Graph     *graph = graph_create(arena, "quantise", op_table, OP_COUNT);
    TensorType type = type_make(DT_F32, 2, rows, cols);
    void      *data[MOST_VALUES];
    Node      *node;
    TRY(quantise(graph, format, &type, values, pool, &node, data));
    for (int k = 0; k < format->num_parts; k++) parts[k] = data[node->out[k]->id];
    return OK;
}

static Status run_both(Arena *arena, const WeightFormat *format, const TensorType *type, float *values, ThreadPool *pool)
{
    Graph          *graph = graph_create(arena, "again", op_table, OP_COUNT);
    DequantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(DT_F32)};
    void           *data[MOST_VALUES];
    Node           *node, *again;
    TRY(quantise(graph, format, type, values, pool, &node, data));
    TRY(graph_add_node(graph, format->dequantise, &attrs, "again", node->out, format->num_parts, ~0u, &again));
    data[again->out[0]->id] = values;
    return run_node(again, data, pool);
}

Status weight_make_again(const WeightFormat *format, int64_t rows, int64_t cols, float *values, ThreadPool *pool)
{
    SCOPED_ARENA(arena);
    TensorType type = type_make(DT_F32, 2, rows, cols);
    return run_both(&arena, format, &type, values, pool);
}
