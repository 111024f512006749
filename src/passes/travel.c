#include "passes/travel.h"

#include "ops/attrs.h"
#include "ops/ops.h"

/* ---- flat values ---- */

Value *flat_value(Graph *graph, ValueKind kind, const char *name, DType dtype, int64_t numel)
{
    TensorType type = type_make(dtype, 1, numel);
    Value     *value = graph_find(graph, name);
    if (!value) value = graph_add_value(graph, kind, name, &type);
    value->layer = -1;
    return value;
}

Value *flat_tensor(Graph *graph, Value *flat, const char *name, int64_t at, const TensorType *dims)
{
    TensorType type = *dims;
    type.dtype = flat->type.dtype;
    Value *part = graph_add_value(graph, flat->kind, name, &type);
    part->space = flat->space;
    value_place_in(part, flat, at);
    return part;
}

Value *flat_part(Graph *graph, Value *flat, const char *name, int64_t at, int64_t numel)
{
    TensorType dims = type_make(flat->type.dtype, 1, numel);
    return flat_tensor(graph, flat, name, at, &dims);
}

/* ---- nodes that send ---- */

static Status add_sender(Graph *graph, const OpDef *op, const void *attrs, Stream stream, const char *name, Value *x, Value *home,
                         Node **out)
{
    TRY(graph_add_node(graph, op, attrs, name, &x, 1, ~0u, out));
    (*out)->stream = stream;
    if (home) value_place_in((*out)->out[0], home, 0);
    return OK;
}

Status add_collective(Graph *graph, const OpDef *op, int64_t ranks, const char *name, Value *x, Value *home, Node **out)
{
    RanksAttrs attrs = {.ranks = ranks};
    return add_sender(graph, op, &attrs, STREAM_COMM, name, x, home, out);
}

Status add_copy(Graph *graph, Stream stream, const char *name, Value *x, Value *home, Node **out)
{
    return add_sender(graph, &op_copy, NULL, stream, name, x, home, out);
}

Status add_largest(Graph *graph, int64_t ranks, const char *name, Value **x, Node **out)
{
    AllReduceAttrs attrs = {.ranks = ranks, .max = true};
    TRY(add_sender(graph, &op_all_reduce, &attrs, STREAM_COMM, name, *x, NULL, out));
    *x = (*out)->out[0];
    return OK;
}

/* ---- gradients ---- */

/* Marks each version of a gradient, by value id, and finds the nodes that make the first and the last one. Results of copies don't count:
 * they have been sent already. */
static void find_versions(const Graph *graph, Leaver **of)
{
    for (Node *node = graph->first; node; node = node->next)
        for (int k = 0; k < node->num_out && node->op != &op_copy; k++) {
            const Value *home = node->out[k] ? node->out[k]->storage : NULL;
            while (home && home->producer) home = home->storage;
            Leaver *gradient = home ? of[home->id] : NULL;
            if (!gradient) continue;
            if (!gradient->first) gradient->first = node;
            gradient->last = node;
            of[node->out[k]->id] = gradient;
        }
}

static Status begin_gradient(Graph *graph, const Leave *leave, const Leaver *gradient, Value *out, const LeaverLayers *layers)
{
    Node *node = gradient->first;
    if (leave->bring && out->sharing != STORAGE_HOME) return leave->bring(graph, gradient, layers);
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i] == gradient->home) node_set_input(node, i, NULL);
    if (out->sharing == STORAGE_HOME) value_leave_home(out);
    if (layers->sent_before) node_add_after(graph, node, layers->sent_before);
    return OK;
}

Status gradients_leave(Graph *graph, const Leave *leave)
{
    LeaverLayers layers = {0};
    Node        *sent = NULL;
    find_versions(graph, leave->of);
    for (Node *node = graph->first, *next; node; node = next) {
        next = node->next;
        for (int k = 0; k < node->num_out; k++) {
            Value        *out = node->out[k];
            const Leaver *gradient = out ? leave->of[out->id] : NULL;
            if (!gradient) continue;
            if (gradient->first == node) {
                if (!layers.begin || node->layer != layers.begin->layer) layers = (LeaverLayers){node, layers.begin, sent, layers.sent};
                TRY(begin_gradient(graph, leave, gradient, out, &layers));
            }
            for (int i = 0; i < node->num_in; i++) /* set again: now that this input is an activation, the version becomes one too */
                if (out->storage && node->in[i] == out->storage) node_set_input(node, i, out->storage);
            if (gradient->last == node && leave->send) TRY(leave->send(leave->context, gradient, out, &sent));
        }
    }
    return OK;
}
