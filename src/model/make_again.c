/* Runs the two ops of a format on the CPU. */
#include "model/make_again.h"

#include "ops/attrs.h"
#include "ops/ops.h"

#include <stdlib.h>

/* A node's kernel on data[id] of its values. */
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

static Status run_both(Arena *arena, const WeightFormat *format, const TensorType *type, float *values, ThreadPool *pool)
{
    Graph          *graph = graph_create(arena, "again", op_table, OP_COUNT);
    DequantiseAttrs attrs = {.dtype = DTYPE_TO_ATTR(DT_F32)};
    Value          *x = graph_add_value(graph, VALUE_INPUT, "x", type);
    Node           *quantise, *dequantise;
    TRY(graph_add_node(graph, format->quantise, format->attrs, "part", &x, 1, ~0u, &quantise));
    TRY(graph_add_node(graph, format->dequantise, &attrs, "again", quantise->out, format->num_parts, ~0u, &dequantise));
    void **data = arena_array(arena, void *, graph->num_values);
    for (int k = 0; k < format->num_parts; k++)
        data[quantise->out[k]->id] = arena_alloc(arena, (size_t)type_bytes(&quantise->out[k]->type));
    data[x->id] = data[dequantise->out[0]->id] = values;
    TRY(run_node(quantise, data, pool));
    return run_node(dequantise, data, pool);
}

Status weight_make_again(const WeightFormat *format, int64_t rows, int64_t cols, float *values, ThreadPool *pool)
{
    Arena      arena = {0};
    TensorType type = type_make(DT_F32, 2, rows, cols);
    Status     status = run_both(&arena, format, &type, values, pool);
    arena_deinit(&arena);
    return status;
}
