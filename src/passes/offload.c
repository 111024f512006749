/* offload: values are kept in pinned memory of the host. Weights of the base model stay there. Activations at the borders of blocks are
 * kept there until the backward pass reads them. Gradients are kept there until something is added to them or the optimizer reads them. A
 * copy brings each value to the device for the forward or the backward pass of its layer; it may start as soon as the layer before begins.
 * The device holds copies for two layers at a time, and the link works in parallel with the kernels.
 *
 * The optimizer's program copies its own values (updates.c). */
#include "ops/ops.h"
#include "passes/layout.h"
#include "passes/pass.h"
#include "passes/travel.h"

const char *offload_name(Offload offload)
{
    static const char *const names[OFFLOAD_COUNT] = {
#define OFFLOAD(id, name, help) #name,
#include "passes/offload.def"
#undef OFFLOAD
    };
    return names[offload];
}

static bool is_backward(const Node *node)
{
    return (node->flags & NODE_BACKWARD) != 0;
}

static void set_place(Graph *graph, const Node *like, Node *before)
{
    graph->cursor = before;
    graph->layer = like->layer;
    graph->part = PART_NONE;
    graph->source = NULL;
}

/* The last launch of the compute stream before a node; NULL: none. */
static Node *launch_before(const Node *node)
{
    Node *before = node->prev;
    while (before && (before->op->flags & OP_VIEW || before->stream != STREAM_COMPUTE || pass_reads_given(before))) before = before->prev;
    return before;
}

/* ---- activations at the borders of blocks ---- */

/* The block that begins with a value: the first later layer that reads it in the forward pass, if the backward pass reads the value too;
 * else -1. */
static int block_of(const Value *value)
{
    const Node *maker = value->producer;
    bool        backward = false;
    int         block = -1;
    if (!maker || is_backward(maker) || value->kind != VALUE_ACTIVATION || value->sharing != STORAGE_OWN) return -1;
    for (const Use *use = value->first_use; use; use = use->next) {
        const Node *node = use->node;
        if (!node || node->op->flags & OP_VIEW) return -1;
        backward = backward || is_backward(node);
        if (!is_backward(node) && node->layer > maker->layer && (block < 0 || node->layer < block)) block = node->layer;
    }
    return backward ? block : -1;
}

/* Sends each border to the host right after its maker, and makes the backward pass read it from there. The border's device memory is free
 * again when the border after the next is made. */
static Status send_borders(Graph *graph)
{
    enum { BESIDE = 2 };
    Node *sent[BESIDE] = {0};
    int   count = 0;
    for (Node *node = graph->first, *next; node; node = next) {
        next = node->next;
        for (int k = 0; k < node->num_out; k++) {
            Value *value = node->out[k];
            int    block = value ? block_of(value) : -1;
            Node  *copy;
            if (block < 0) continue;
            Node *earlier = sent[count % BESIDE];
            if (earlier && node_precedes(earlier, node)) node_add_after(graph, node, earlier);
            set_place(graph, node, next);
            TRY(add_copy(graph, STREAM_COPY_OUT, value->name, value, NULL, &copy));
            copy->out[0]->space = SPACE_HOST;
            copy->out[0]->layer = block;
            for (Use *use = value->first_use, *following; use; use = following) {
                following = use->next;
                if (is_backward(use->node)) node_set_input(use->node, use->index, copy->out[0]);
            }
            sent[count++ % BESIDE] = copy;
        }
    }
    return OK;
}

/* ---- gradients ---- */

/* Copies to the device a gradient to which a layer adds. The copy runs while the layer before is computed. */
static Status bring_gradient(Graph *graph, const Leaver *gradient, const LeaverLayers *layers)
{
    Node *node = gradient->first, *stand = layers->begin_before ? layers->begin_before : node, *copy, *after = launch_before(stand);
    set_place(graph, node, stand);
    TRY(add_copy(graph, STREAM_COPY_IN, gradient->home->name, gradient->home, NULL, &copy));
    copy->flags |= NODE_BACKWARD;
    if (after) node_add_after(graph, copy, after);
    if (layers->sent_before) node_add_after(graph, copy, layers->sent_before);
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i] == gradient->home) node_set_input(node, i, copy->out[0]);
    return OK;
}

static Status send_gradient(const void *context, const Leaver *gradient, Value *made, Node **out)
{
    Graph *graph = (Graph *)context;
    set_place(graph, gradient->last, gradient->last->next);
    TRY(add_copy(graph, STREAM_COPY_OUT, made->name, made, gradient->home, out));
    (*out)->flags |= NODE_BACKWARD;
    return OK;
}

static Status send_gradients(Graph *graph)
{
    Leaver  *leavers = arena_array(graph->arena, Leaver, graph->num_values + 1);
    Leaver **of = arena_array(graph->arena, Leaver *, graph->num_values + 1);
    for (int i = 0; i < graph->num_values; i++) {
        Value *home = graph->values[i];
        if (home->producer || home->kind != VALUE_GRAD || value_root(home, NULL)->space != SPACE_HOST) continue;
        leavers[i].home = home;
        of[i] = &leavers[i];
    }
    return gradients_leave(graph, &(Leave){.of = of, .bring = bring_gradient, .send = send_gradient, .context = graph});
}

/* ---- copies to the device ---- */

/* Values that are copied together, because their first readers are neighbours. A group belongs to one layer in one pass (forward or
 * backward), or to no layer. */
typedef struct Group {
    Node   *first; /* the first reader of the group */
    int     layer; /* layer of the group; -1: none */
    bool    late;  /* for the backward pass; in a group of no layer: first read after some layer began */
    int64_t bytes;
    int     begin, end; /* the group's fetches: [begin, end) */
} Group;

typedef struct Fetch {
    Value *value, *copy;
} Fetch;

/* Input `index` of `node` reads a fetched value. */
typedef struct Reading {
    Node *node;
    int   index, fetch;
} Reading;

typedef struct Offloading {
    Graph   *graph;
    Group   *groups;
    Fetch   *fetches; /* in the order of their first reads */
    Reading *readings;
    int      num_groups, num_fetches, num_readings;
    bool     in_layers;   /* a value of a layer has been read */
    int     *fetch_of[2]; /* by value id: 1 + index of its fetch in a group that isn't late [0], or is late [1]; 0: none yet */
} Offloading;

/* Whether the node reads a host value that is to be copied. A node that reads only a little of a value, such as a few rows of an embedding,
 * reads it from host memory. */
static bool is_fetched(const Node *node, const Value *value)
{
    if (!value || value_root((Value *)value, NULL)->space != SPACE_HOST) return false;
    if (node->op->flags & OP_VIEW || node->op == &op_copy) return false;
    if (value->kind != VALUE_PARAM && value->kind != VALUE_ACTIVATION) return false;
    return !node->op->cost || node->op->cost(node).bytes >= (double)type_bytes(&value->type);
}

static Group *find_group(Offloading *o, int layer, bool late, Node *first)
{
    Group *last = o->num_groups ? &o->groups[o->num_groups - 1] : NULL;
    if (last && last->layer == layer && last->late == late) return last;
    Group *group = &o->groups[o->num_groups++];
    *group = (Group){.first = first, .layer = layer, .late = late, .begin = o->num_fetches};
    return group;
}

static void find_reading(Offloading *o, Node *node, int index)
{
    Value *value = node->in[index];
    bool   late = value->layer < 0 ? o->in_layers : is_backward(node);
    int   *fetch = &o->fetch_of[late][value->id];
    o->in_layers = o->in_layers || value->layer >= 0;
    if (!*fetch) {
        Group *group = find_group(o, value->layer, late, node);
        o->fetches[o->num_fetches++].value = value;
        *fetch = group->end = o->num_fetches;
        group->bytes += type_bytes(&value->type);
    }
    o->readings[o->num_readings++] = (Reading){node, index, *fetch - 1};
}

/* Merges each group that is much smaller than the next group into that group: the small group's work is too short to hide the next group's
 * copies. */
static void merge_small(Offloading *o)
{
    enum { SMALL = 8 };
    for (int i = 0; i + 1 < o->num_groups; i++) {
        Group *group = &o->groups[i], *next = group + 1;
        if (group->bytes * SMALL >= next->bytes) continue;
        next->begin = group->begin;
        next->first = group->first;
        next->bytes += group->bytes;
        group->end = group->begin;
    }
}

/* Adds the copies of a group right before node `begin`; they wait for the launch before `begin`. A value that isn't made by then is copied
 * right after its maker instead. */
static Status copy_group(const Offloading *o, const Group *group, Node *begin)
{
    Node *after = launch_before(begin), *copy;
    for (int i = group->begin; i < group->end; i++) {
        Value *value = o->fetches[i].value;
        Node  *maker = value->producer;
        set_place(o->graph, group->first, maker && !node_precedes(maker, begin) ? maker->next : begin);
        TRY(add_copy(o->graph, STREAM_COPY_IN, value->name, value, NULL, &copy));
        copy->flags |= group->first->flags & NODE_BACKWARD;
        if (after) node_add_after(o->graph, copy, after);
        o->fetches[i].copy = copy->out[0];
    }
    return OK;
}

static Status fetch_all(Graph *graph)
{
    Offloading o = {.graph = graph};
    Node      *before = NULL; /* first reader of the group before this one */
    int        most = 0;
    for (const Node *node = graph->first; node; node = node->next) most += node->num_in;
    o.groups = arena_array(graph->arena, Group, most + 1);
    o.fetches = arena_array(graph->arena, Fetch, most + 1);
    o.readings = arena_array(graph->arena, Reading, most + 1);
    for (int i = 0; i < 2; i++) o.fetch_of[i] = arena_array(graph->arena, int, graph->num_values + 1);
    for (Node *node = graph->first; node; node = node->next)
        for (int i = 0; i < node->num_in; i++)
            if (is_fetched(node, node->in[i])) find_reading(&o, node, i);
    merge_small(&o);
    for (int i = 0; i < o.num_groups; i++) {
        const Group *group = &o.groups[i];
        if (group->begin == group->end) continue;
        TRY(copy_group(&o, group, before ? before : group->first));
        before = group->first;
    }
    for (int i = 0; i < o.num_readings; i++) node_set_input(o.readings[i].node, o.readings[i].index, o.fetches[o.readings[i].fetch].copy);
    return OK;
}

/* Weights and gradients that every rank holds whole are sent from rank to rank, which needs device memory: they can't be offloaded. */
static Status check_ranks(const CompileOptions *options)
{
    int whole = options->world > 1 && options->train_base ? options->zero_level : 3;
    FAIL_IF(whole < 3 && options->offload >> OFFLOAD_WEIGHTS & 1, ERR_INVALID,
            "offload_weights: on several GPUs trained weights wait on the host where each has its share alone; set shard_weights: true");
    FAIL_IF(whole < 2 && options->offload >> OFFLOAD_GRADS & 1, ERR_INVALID,
            "offload_grads: on several GPUs gradients wait on the host where each has its share alone; set shard_gradients: true");
    return OK;
}

/* Sets the value's space: the one in which an earlier program has it, else the one that the options choose. */
static void set_space(const PassContext *context, Value *value)
{
    const PlanEntry *entry = plan_find(context->plan, value->name);
    value->space = entry ? entry->place.space : layout_space(context->options, value);
}

static void set_grad_spaces(const PassContext *context, Graph *graph)
{
    const Plan *plan = context->plan;
    for (int i = 0, count = graph->num_values; i < count; i++) {
        const Value *whole = graph->values[i];
        Value       *grad = layout_is_whole(whole) ? graph_find(graph, arena_printf(graph->arena, "grad.%s", whole->name)) : NULL;
        if (grad && !grad->storage) grad->space = layout_grad_space(context->options, whole);
    }
    for (int b = 0; b < plan->num_buckets; b++) {
        Value *share = graph_find(graph, plan->buckets[b].grad_share);
        if (share) share->space = plan->buckets[b].grad_space;
    }
}

Status pass_offload(PassContext *context, Graph **graph_ref)
{
    Graph   *graph = *graph_ref;
    uint32_t offload = context->options->offload;
    if (!offload) return OK;
    TRY(check_ranks(context->options));
    for (int i = 0; i < graph->num_values; i++)
        if (layout_is_whole(graph->values[i])) set_space(context, graph->values[i]);
    if (offload >> OFFLOAD_GRADS & 1) {
        set_grad_spaces(context, graph);
        TRY(send_gradients(graph));
    }
    if (offload >> OFFLOAD_RESIDUAL & 1) TRY(send_borders(graph));
    return fetch_all(graph);
}
