/* recompute: values that the flags name aren't kept for the backward pass; their forward nodes are cloned right before their first use
 * there (the cheapest form of Chen et al. 2016). Clones draw the same random numbers (they are keyed) and give the same bits. Hints of the
 * model override the flags: a value that the model marks as saved is kept, and a value that it marks as computed again is dropped.
 *
 * Values materialised at use (NODE_AT_USE: uploaded, gathered, dequantised) are made right before each reader, whatever the flags. */
#include "ops/ops.h"
#include "passes/pass.h"

/* Whether output `k` is lasting memory that the node updates besides making its results, such as a largest value seen. */
static bool is_record(const Node *node, int k)
{
    const Value *out = node->out[k];
    return out && out->sharing == STORAGE_UPDATE && value_root(out->storage, NULL)->kind != VALUE_ACTIVATION;
}

/* Adds a clone of `node` at the cursor, reading `in`. The clone updates no lasting memory: the node itself did. */
static Status add_clone(Graph *graph, const Node *node, Value **in, uint32_t flags, Node **out)
{
    uint32_t want = node_wanted(node);
    for (int k = 0; k < node->num_out; k++)
        if (is_record(node, k)) want &= ~(1u << k);
    for (int i = 0; i < node->op->num_alias; i++)
        if (is_record(node, node->op->alias[i].out)) in[node->op->alias[i].in] = NULL;
    pass_work_like(graph, node);
    TRY(graph_add_node(graph, node->op, node->attrs, node_first_out(node)->name, in, node->num_in, want, out));
    (*out)->flags |= NODE_CLONE | flags | (node->flags & NODE_AT_USE);
    (*out)->stream = node->stream;
    for (int k = 0; k < node->num_out; k++)
        if ((*out)->out[k]) (*out)->out[k]->space = node->out[k]->space;
    for (int i = 0; i < node->num_after; i++) node_add_after(graph, *out, node->after[i]);
    return OK;
}

/* ---- values that the flags drop ---- */

typedef struct Recompute {
    Graph   *graph;
    uint32_t parts;      /* bit per Part */
    int      num_values; /* number of values before any clone was added */
    char    *boundary;   /* by value id: whether a forward node of another layer reads the value, or it is a graph output */
    Value  **clones;     /* by value id: its clone; NULL: none yet */
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

/* Whether the model marks as saved this value, or a larger output of the same node: small outputs, such as statistics of rows, are kept
 * with the larger one. */
static bool is_saved(const Value *value)
{
    const Node *node = value->producer;
    for (int k = 0; k < node->num_out; k++) {
        const Value *out = node->out[k];
        if (out && out->hint == HINT_SAVE && (out == value || type_bytes(&value->type) < type_bytes(&out->type))) return true;
    }
    return false;
}

/* Whether the value is made again from the node's first output. */
static bool can_rebuild(const Value *value)
{
    const Node *node = value->producer;
    return node->op->rebuild && value->out_index == 1 && node->out[0];
}

/* Whether the flags or its hint drop a forward value. */
static bool is_dropped(const Recompute *r, const Value *value)
{
    const Node *node = value->producer;
    if (!node || value->id >= r->num_values || (node->flags & (NODE_BACKWARD | NODE_ONCE))) return false;
    if (value->kind != VALUE_ACTIVATION || is_saved(value) || (value->hint != HINT_AGAIN && !has_part(r, node))) return false;
    /* An output that is recomputed from another output of the same node needn't be kept, even at a boundary. */
    if (can_rebuild(value)) return true;
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
    Value *in[NODE_MAX_IN];
    Node  *clone;
    for (int i = 0; i < node->num_in; i++) TRY(clone_input(r, node->in[i], &in[i]));
    TRY(add_clone(r->graph, node, in, NODE_BACKWARD, &clone));
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
        bool rebuild = can_rebuild(value) && (r->boundary[value->producer->out[0]->id] || !(r->parts >> PART_BLOCK & 1));
        TRY(rebuild ? rebuild_value(r, value) : clone_node(r, value->producer));
    }
    *out = r->clones[value->id];
    return OK;
}

static Status drop_parts(Graph *graph, uint32_t parts)
{
    Recompute r = {.graph = graph, .parts = parts, .num_values = graph->num_values};
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
    return OK;
}

/* ---- materialised at use ---- */

typedef struct AtUse {
    Graph       *graph;
    Node       **made;   /* by id of a node made at use: its latest copy, the node itself or a clone */
    const Node **reader; /* the reader before which the latest copy stands */
} AtUse;

/* Marks views of values made at use as made at use too. Returns whether any node is made at use. */
static bool mark_views(Graph *graph)
{
    bool any = false;
    for (Node *node = graph->first; node; node = node->next) {
        const Node *maker = node->op->flags & OP_VIEW ? node->in[0]->producer : NULL;
        if (maker && maker->flags & NODE_AT_USE) node->flags |= NODE_AT_USE;
        any = any || node->flags & NODE_AT_USE;
    }
    return any;
}

static Node *made_at_use(const Value *value)
{
    return value && value->producer && value->producer->flags & NODE_AT_USE ? value->producer : NULL;
}

/* Puts `node`, and those of its inputs that are made at use, right before the reader (NULL: the end). For its first reader the node itself
 * moves, if all its inputs are unchanged; else a clone is added. */
static Status materialise(AtUse *a, Node *node, const Node *reader, uint32_t backward, Node **out)
{
    Value *in[NODE_MAX_IN];
    bool   own = !a->made[node->id];
    *out = a->made[node->id];
    if (!own && a->reader[node->id] == reader) return OK;
    for (int i = 0; i < node->num_in; i++) {
        Node *maker = made_at_use(in[i] = node->in[i]), *made;
        if (maker) TRY(materialise(a, maker, reader, backward, &made));
        if (maker) in[i] = made->out[in[i]->out_index];
        own = own && in[i] == node->in[i];
    }
    *out = node;
    node->flags |= own ? backward : 0;
    if (own)
        graph_move_before(a->graph, node, a->graph->cursor);
    else
        TRY(add_clone(a->graph, node, in, backward, out));
    a->made[node->id] = *out;
    a->reader[node->id] = reader;
    return OK;
}

/* Materialises the nodes for all readers. Graph outputs are read at the end: they keep the nodes that make them. */
static Status materialise_all(Graph *graph)
{
    AtUse    a = {.graph = graph};
    Node    *made;
    uint32_t last = graph->last->flags & NODE_BACKWARD;
    graph->cursor = NULL;
    a.made = arena_array(graph->arena, Node *, graph->next_node_id);
    a.reader = arena_array(graph->arena, const Node *, graph->next_node_id);
    for (int i = 0; i < graph->num_outputs; i++)
        if (made_at_use(graph->outputs[i].value)) TRY(materialise(&a, graph->outputs[i].value->producer, NULL, last, &made));
    for (Node *node = graph->first; node; node = node->next) {
        if (node->flags & NODE_AT_USE) continue;
        graph->cursor = node;
        for (int i = 0; i < node->num_in; i++) {
            Node *maker = made_at_use(node->in[i]);
            if (!maker) continue;
            TRY(materialise(&a, maker, node, node->flags & NODE_BACKWARD, &made));
            node_set_input(node, i, made->out[node->in[i]->out_index]);
        }
    }
    return OK;
}

/* Drops unread codes. If a tensor is quantised twice, one of its layouts may be read only from the first node, or only from the second.
 * Other ops keep unread outputs: the choice of a kernel may depend on them. */
static void drop_unread_codes(Graph *graph)
{
    for (Node *node = graph->first; node; node = node->next)
        for (int k = 0; k < node->num_out && node->op == &op_fp8_quantise; k++)
            if (node->out[k] && !node->out[k]->num_uses && node->out[k]->sharing == STORAGE_OWN) node_drop_output(node, k);
}

static bool any_again(const Graph *graph)
{
    for (int i = 0; i < graph->num_values; i++)
        if (graph->values[i]->hint == HINT_AGAIN) return true;
    return false;
}

Status pass_recompute(PassContext *context, Graph **graph_ref)
{
    Graph   *graph = *graph_ref;
    uint32_t parts = context->options->recompute;
    bool     drops = parts || any_again(graph);
    if (drops) TRY(drop_parts(graph, parts));
    bool at_use = mark_views(graph);
    if (at_use) TRY(materialise_all(graph));
    if (drops || at_use) remove_dead_nodes(graph);
    if (drops) drop_unread_codes(graph);
    return OK;
}
