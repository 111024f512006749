/* Functions that backward rules call. A parameter's gradient is produced straight into its lasting memory. */
#include "ir/grad.h"

void grad_init(GradBuilder *grad, Graph *graph, int add_op, bool accumulate, bool fp32_grads)
{
    *grad = (GradBuilder){
        .graph = graph, .add_op = add_op, .num_forward = graph->num_values, .accumulate = accumulate, .fp32_grads = fp32_grads};
    grad->wanted = arena_array(graph->arena, char, graph->num_values);
    grad->grads = arena_array(graph->arena, Value *, graph->num_values);
    grad->homes = arena_array(graph->arena, Value *, graph->num_values);
}

Value *grad_of(GradBuilder *grad, Value *value)
{
    return value && value->id < grad->num_forward ? grad->grads[value->id] : NULL;
}

bool grad_wanted(GradBuilder *grad, const Value *value)
{
    return value && value->id < grad->num_forward && grad->wanted[value->id];
}

Status grad_emit(GradBuilder *grad, int op_id, const void *attrs, Value *const *in, int num_in, uint32_t want, Value **out)
{
    const OpDef *op = grad->graph->ops[op_id];
    Node        *node;
    TRY(graph_add_node(grad->graph, op, attrs, arena_printf(grad->graph->arena, "d.%s", op->name), in, num_in, want, &node));
    node->flags |= NODE_BACKWARD;
    for (int k = 0; k < op->num_out; k++) out[k] = node->out[k];
    return OK;
}

Status grad_add(GradBuilder *grad, Value *value, Value *contribution)
{
    if (!contribution || !grad_wanted(grad, value)) return OK;
    CHECK(value->kind != VALUE_PARAM); /* parameters go through grad_accumulator and grad_set */
    Value **slot = &grad->grads[value->id];
    if (!*slot) {
        *slot = contribution;
        return OK;
    }
    Value *in[] = {*slot, contribution};
    return grad_emit(grad, grad->add_op, NULL, in, 2, ~0u, slot);
}

static DType home_dtype(const GradBuilder *grad, const Value *param)
{
    return grad->fp32_grads ? DT_F32 : param->type.dtype;
}

static Value *home_of(GradBuilder *grad, Value *param)
{
    Value **home = &grad->homes[param->id];
    if (!*home) {
        TensorType type = param->type;
        type.dtype = home_dtype(grad, param);
        *home = graph_add_value(grad->graph, VALUE_GRAD, arena_printf(grad->graph->arena, "grad.%s", param->name), &type);
        (*home)->layer = param->layer;
    }
    return *home;
}

int64_t grad_dw_dtype(GradBuilder *grad, const Value *param, DType own)
{
    if (param->kind != VALUE_PARAM) return 0;
    DType dtype = home_dtype(grad, param);
    return dtype == own ? 0 : DTYPE_TO_ATTR(dtype);
}

Value *grad_accumulator(GradBuilder *grad, Value *param)
{
    CHECK(param->id < grad->num_forward);
    if (param->kind != VALUE_PARAM) return NULL;
    if (grad->grads[param->id]) return grad->grads[param->id];
    return grad->accumulate ? home_of(grad, param) : NULL;
}

void grad_set(GradBuilder *grad, Value *param, Value *value)
{
    CHECK(value->producer);
    if (param->kind != VALUE_PARAM) {
        CHECK(grad_add(grad, param, value) == OK); /* fails only if the types differ */
        return;
    }
    if (value->sharing != STORAGE_UPDATE) {
        CHECK(!grad->grads[param->id] && !value->storage);
        value_place_in(value, home_of(grad, param), 0);
        CHECK(type_equal(&value->type, &value->storage->type)); /* true, as the rule got this dtype from grad_dw_dtype */
    }
    grad->grads[param->id] = value;
}

static bool reads_any(const Node *node, const char *marked)
{
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i] && marked[node->in[i]->id]) return true;
    return false;
}

/* Marks, by value id, `from` and the values computed from it in the forward pass. Returns NULL if a backward node reads one already. */
static char *find_followers(const Graph *graph, const Value *from)
{
    char *marked = arena_array(graph->arena, char, graph->num_values);
    marked[from->id] = 1;
    for (const Node *node = from->producer->next; node; node = node->next) {
        if (!reads_any(node, marked)) continue;
        if (node->flags & NODE_BACKWARD) return NULL;
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) marked[node->out[k]->id] = 1;
    }
    return marked;
}

/* Nodes of the forward pass that depend on `from` move after the backward node that yields `to`. */
void grad_replace_forward(GradBuilder *grad, Value *from, Value *to)
{
    Graph      *graph = grad->graph;
    const char *marked = find_followers(graph, from);
    if (!marked) return;
    const Node *last = graph->last;
    for (Node *node = from->producer->next, *next; node; node = next) {
        next = node == last ? NULL : node->next;
        if (reads_any(node, marked)) graph_move_before(graph, node, NULL);
    }
    graph_replace_uses(graph, from, to, NULL);
}
