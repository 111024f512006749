/* recompute: what the flags name isn't kept for the backward pass; its forward nodes are cloned right before their first use
 * there. Cheapest form of Chen et al. 2016. Clones draw the same random numbers (they are keyed) and give the same bits. */
#include "ops/ops.h"
#include "passes/pass.h"

typedef struct Recompute {
    Graph   *graph;
    uint32_t parts;      /* bit per Part */
    int      num_values; /* before any clone */
    char    *boundary;   /* by value id: read by a forward node of another layer, or a graph output */
    Value  **clones;     /* by value id */
} Recompute;

static void find_boundaries(Recompute *r)
{
    for (const Node *node = r->graph->first; node; node = node->next) {
        if (node->flags & NODE_BACKWARD) continue;
        for (int i = 0; i < node->num_in; i++) {
            const Value *in = node->in[i];
            if (in && in->producer && in->producer->layer != node->layer) r->boundary[in->id] = 1;
        }
    }
    for (int i = 0; i < r->graph->num_outputs; i++) r->boundary[r->graph->outputs[i].value->id] = 1;
}

static bool has_part(const Recompute *r, const Node *node)
{
    if (node->layer < 0) return false;
    return (r->parts >> node->part & 1) || (r->parts >> PART_BLOCK & 1);
}

/* A forward value that the flags drop. */
static bool is_dropped(const Recompute *r, const Value *value)
{
    const Node *node = value->producer;
    if (!node || value->id >= r->num_values || (node->flags & (NODE_BACKWARD | NODE_ONCE))) return false;
    if (value->kind != VALUE_ACTIVATION || !has_part(r, node)) return false;
    /* An output that can be had again from another of the same node's is no boundary that must be kept. */
    if (node->op->rebuild && value->out_index == 1) return true;
    return !r->boundary[value->id] && !(node->op->rebuild && !(r->parts >> PART_BLOCK & 1));
}

static Status clone_value(Recompute *r, Value *value, Value **out);

static Status clone_input(Recompute *r, Value *value, Value **out)
{
    *out = value;
    return value && is_dropped(r, value) ? clone_value(r, value, out) : OK;
}

static Status clone_node(Recompute *r, const Node *node)
{
    Value   *in[NODE_MAX_IN];
    uint32_t want = 0;
    for (int i = 0; i < node->num_in; i++) TRY(clone_input(r, node->in[i], &in[i]));
    for (int k = 0; k < node->num_out; k++) want |= (uint32_t)(node->out[k] != NULL) << k;
    int first = 0;
    while (first < node->num_out && !node->out[first]) first++;
    r->graph->layer = node->layer;
    r->graph->part = node->part;
    r->graph->source = node->source;
    Node *clone;
    TRY(graph_add_node(r->graph, node->op, node->attrs, node->out[first]->name, in, node->num_in, want, &clone));
    clone->flags |= NODE_BACKWARD | NODE_CLONE;
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) r->clones[node->out[k]->id] = clone->out[k];
    return OK;
}

static Status rebuild_value(Recompute *r, Value *value)
{
    Node  *node = value->producer, *made = r->graph->cursor ? r->graph->cursor->prev : r->graph->last;
    Value *kept = node->out[0], *from, *again;
    TRY(clone_input(r, kept, &from));
    r->graph->layer = node->layer;
    r->graph->part = node->part;
    TRY(node->op->rebuild(r->graph, node, value->out_index, &again));
    made = made ? made->next : r->graph->first;
    for (; made != r->graph->cursor; made = made->next) {
        made->flags |= NODE_BACKWARD | NODE_CLONE;
        for (int i = 0; i < made->num_in; i++)
            if (made->in[i] == kept) node_set_input(made, i, from);
    }
    r->clones[value->id] = again;
    return OK;
}

static Status clone_value(Recompute *r, Value *value, Value **out)
{
    if (!r->clones[value->id]) {
        bool rebuild = value->producer->op->rebuild && value->out_index == 1 && r->boundary[value->producer->out[0]->id];
        if (value->producer->op->rebuild && value->out_index == 1 && !(r->parts >> PART_BLOCK & 1)) rebuild = true;
        TRY(rebuild ? rebuild_value(r, value) : clone_node(r, value->producer));
    }
    *out = r->clones[value->id];
    return OK;
}

Status pass_recompute(PassContext *context, Graph **graph_ref)
{
    Graph    *graph = *graph_ref;
    Recompute r = {.graph = graph, .parts = context->options->recompute, .num_values = graph->num_values};
    if (!r.parts) return OK;
    r.boundary = arena_array(graph->arena, char, graph->num_values);
    r.clones = arena_array(graph->arena, Value *, graph->num_values);
    find_boundaries(&r);
    for (Node *node = graph->first; node; node = node->next) {
        if (!(node->flags & NODE_BACKWARD) || (node->flags & NODE_CLONE)) continue;
        graph->cursor = node;
        for (int i = 0; i < node->num_in; i++) {
            Value *in;
            TRY(clone_input(&r, node->in[i], &in));
            if (in != node->in[i]) node_set_input(node, i, in);
        }
    }
    graph->cursor = NULL;
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->source = NULL;
    remove_dead_nodes(graph);
    return OK;
}
