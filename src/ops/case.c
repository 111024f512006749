#include "ops/case.h"

Status op_alone(Graph *graph, const OpDef *op, const void *attrs, const TensorType *in, Node **out)
{
    Value *values[NODE_MAX_IN] = {0};
    for (int i = 0; i < op->num_in; i++)
        if (in[i].ndim) values[i] = graph_add_value(graph, VALUE_INPUT, arena_printf(graph->arena, "in%d", i), &in[i]);
    return graph_add_node(graph, op, attrs, "out", values, op->num_in, ~0u, out);
}

bool type_is_float(const TensorType *type)
{
    return type->ndim && (DT_SET(type->dtype) & DT_SET_DECODE);
}

bool op_has_dtype(const OpDef *op, const TensorType *in, DType dtype)
{
    for (int i = 0; i < op->num_in; i++)
        if (in[i].ndim && in[i].dtype == dtype) return true;
    return false;
}

/* The op's node in a graph of its own in the arena; NULL: infer refuses these types. */
static Node *try_alone(Arena *arena, const OpDef *op, const void *attrs, const TensorType *in)
{
    Node *node;
    if (op_alone(graph_create(arena, "case", op_table, OP_COUNT), op, attrs, in, &node) == OK) return node;
    status_clear();
    return NULL;
}

bool op_takes(const OpDef *op, const void *attrs, const TensorType *in)
{
    Arena arena = {0};
    bool  takes = try_alone(&arena, op, attrs, in) != NULL;
    arena_deinit(&arena);
    return takes;
}

bool op_is_served(const OpDef *op, const void *attrs, const TensorType *in)
{
    Arena       arena = {0};
    const Node *node = try_alone(&arena, op, attrs, in);
    bool        served = node && op_cpu_kernel(node);
    arena_deinit(&arena);
    return served;
}

bool op_round_inputs(const OpDef *op, const void *attrs, DType dtype, int step, TensorType *in)
{
    bool changed = false;
    for (int i = 0; i < op->num_in; i += step) {
        DType own = in[i].dtype;
        if (!type_is_float(&in[i])) continue;
        in[i].dtype = dtype;
        if (op_takes(op, attrs, in))
            changed = true;
        else
            in[i].dtype = own;
    }
    return changed;
}

bool op_add_accumulators(const OpDef *op, const void *attrs, TensorType *in)
{
    Arena       arena = {0};
    const Node *node = try_alone(&arena, op, attrs, in);
    bool        changed = false;
    for (int a = 0; node && a < op->num_alias; a++) {
        const OpAlias *alias = &op->alias[a];
        if (!alias->accumulate || in[alias->in].ndim || !node->out[alias->out]) continue;
        in[alias->in] = node->out[alias->out]->type;
        changed = true;
    }
    arena_deinit(&arena);
    return changed;
}
