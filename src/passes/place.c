/* place: one static offset for every buffer. Lasting values are laid out once for all programs of a session (layout.c). Activations are
 * placed by liveness: memory is reused by activations that are never alive at the same time.
 *
 * Only values with memory of their own get an offset; other values lie in their storage (Value.storage). An element-wise result may take
 * the memory of an operand that dies as it is made (share_in_place). This reuse leaves Value.storage as it is: it follows from the order of
 * nodes, and only decides offsets. */
#include "ops/ops.h"
#include "passes/intervals.h"
#include "passes/layout.h"
#include "passes/pass.h"
#include "run/order.h"

/* A workspace of at least this size isn't in the scratch that launches of a stream share: it is placed among the activations while its
 * launch runs. The output head's workspace is as large as a block's activations, and needed when few of those are alive. */
enum { LARGE_WORKSPACE = 64 << 20 };

typedef struct Placer {
    Device      *device;
    const Graph *graph;
    const Root  *roots; /* by value id: its root */
    const Order *order;
    int         *interval_of;  /* by id of a root value: index into intervals; -1: none */
    int         *workspace_of; /* by node id: index of its large workspace in intervals; -1: none */
    Interval    *intervals;
    int          num;
} Placer;

static Interval *find_interval(Placer *p, const Value *value)
{
    int index = p->interval_of[p->roots[value->id].value->id];
    return index < 0 ? NULL : &p->intervals[index];
}

static void extend(Placer *p, const Value *value, int index)
{
    Interval *interval = value ? find_interval(p, value) : NULL;
    if (interval && interval->end < index) interval->end = index;
}

static Status check_use(const Placer *p, const Value *value, bool backward)
{
    const Node *maker = value ? p->roots[value->id].value->producer : NULL;
    bool        across = maker && maker->flags & NODE_AT_USE && !(maker->flags & NODE_BACKWARD) == backward;
    FAIL_IF(across, ERR_INVALID, "%s is made at use, but lives from the forward pass into the backward pass; pass recompute makes it again",
            value->name);
    return OK;
}

/* Checks that no value made at use is alive from a forward node to a backward one. */
static Status prove_at_use(const Placer *p)
{
    bool backward = false;
    for (const Node *node = p->graph->first; node; node = node->next) {
        backward = backward || node->flags & NODE_BACKWARD;
        for (int i = 0; i < node->num_in; i++) TRY(check_use(p, node->in[i], node->flags & NODE_BACKWARD));
    }
    for (int i = 0; i < p->graph->num_outputs; i++) TRY(check_use(p, p->graph->outputs[i].value, backward));
    return OK;
}

/* With several streams, a later launch may make its result before an earlier launch touches a value for the last time. Extends each value's
 * life to the last such launch. */
static void extend_beside(Placer *p, const int *index_of_launch)
{
    for (int i = 0; i < p->num; i++) {
        int last = order_last_beside(p->order, p->graph->values[p->intervals[i].id]);
        if (last >= 0 && index_of_launch[last] > p->intervals[i].end) p->intervals[i].end = index_of_launch[last];
    }
}

/* Adds the large workspace of a node, alive while the node runs. With several streams, launches of other streams could use that memory at
 * the same time: then the workspace stays in its stream's scratch. */
static void begin_workspace(Placer *p, const Node *node, int index)
{
    BoundKernel kernel = {0};
    if (!order_is_single(p->order) || !node_is_launch(node)) return;
    if (p->device->api->bind(p->device, node, &kernel) != OK) status_clear(); /* pass emit reports the error */
    if (kernel.workspace_bytes < LARGE_WORKSPACE) return;
    p->workspace_of[node->id] = p->num;
    p->intervals[p->num++] =
        (Interval){p->graph->num_values + index, index, index, layout_align((int64_t)kernel.workspace_bytes, PLACE_ALIGN), 0};
}

/* Begins the value's life if the value is of this kind, has memory of its own, and isn't alive already. */
static void begin_life(Placer *p, const Value *value, ValueKind kind, int index)
{
    if (!value || p->roots[value->id].value != value || value->kind != kind || p->interval_of[value->id] >= 0) return;
    p->interval_of[value->id] = p->num;
    p->intervals[p->num++] = (Interval){value->id, index, index, layout_align(type_bytes(&value->type), PLACE_ALIGN), 0};
}

static void find_lives(Placer *p, Arena *arena)
{
    int  index = 0, launch = 0;
    int *index_of_launch = arena_array(arena, int, p->graph->num_nodes + 1);
    for (Node *node = p->graph->first; node; node = node->next) {
        if (node->flags & NODE_ONCE) continue;
        if (node_is_launch(node)) index_of_launch[launch++] = index;
        for (int i = 0; i < node->num_in; i++)
            if (node->in[i]) begin_life(p, p->roots[node->in[i]->id].value, VALUE_STAGED, index);
        for (int k = 0; k < node->num_out; k++) {
            begin_life(p, node->out[k], VALUE_ACTIVATION, index);
            if (node->out[k]) begin_life(p, p->roots[node->out[k]->id].value, VALUE_STAGED, index);
        }
        for (int i = 0; i < node->num_in; i++) extend(p, node->in[i], index);
        for (int k = 0; k < node->num_out; k++) extend(p, node->out[k], index);
        begin_workspace(p, node, index);
        index++;
    }
    for (int i = 0; i < p->graph->num_outputs; i++) extend(p, p->graph->outputs[i].value, index);
    if (!order_is_single(p->order)) extend_beside(p, index_of_launch);
}

/* Lets an element-wise result take the memory of an input that dies there. */
static void share_in_place(Placer *p)
{
    int index = -1, launch = -1;
    for (Node *node = p->graph->first; node; node = node->next) {
        if (node->flags & NODE_ONCE) continue;
        index++;
        launch += node_is_launch(node);
        Value *out = node->out[0];
        if (!out || p->interval_of[out->id] < 0) continue;
        for (int i = 0; i < node->num_in; i++) {
            if (!(node->op->inplace >> i & 1)) continue;
            const Value *in = node->in[i], *root = in ? p->roots[in->id].value : NULL;
            Interval    *from = in ? find_interval(p, in) : NULL, *to = &p->intervals[p->interval_of[out->id]];
            if (!from || from == to || from->end != index || from->bytes != to->bytes || to->start != index) continue;
            if (root->space != out->space || !order_is_last_touch(p->order, root, launch)) continue;
            from->end = to->end;
            to->bytes = 0; /* the result needs no memory of its own any more */
            p->interval_of[out->id] = (int)(from - p->intervals);
            break;
        }
    }
}

/* Places the intervals of one space and returns the bytes they take; unplaced: only computes the bytes. *out_live as in intervals_place. */
static int64_t place_space(Placer *p, Arena *arena, Space space, bool unplaced, int64_t *out_live)
{
    Interval *items = arena_array(arena, Interval, p->num + 1);
    int      *from = arena_array(arena, int, p->num + 1), count = 0;
    for (int i = 0; i < p->num; i++) {
        bool is_workspace = p->intervals[i].id >= p->graph->num_values;
        if ((is_workspace ? SPACE_DEVICE : p->graph->values[p->intervals[i].id]->space) != space) continue;
        from[count] = i;
        items[count++] = p->intervals[i];
    }
    if (unplaced) return *out_live = intervals_live(arena, items, count);
    int64_t bytes = intervals_place(arena, items, count, out_live);
    for (int i = 0; i < count; i++) p->intervals[from[i]].offset = items[i].offset;
    return bytes;
}

static Status placement_of(Placer *p, const Plan *plan, const Value *value, Placement *out)
{
    const Value *root = p->roots[value->id].value;
    *out = (Placement){.bytes = type_bytes(&value->type), .space = root->space};
    if (p->interval_of[root->id] >= 0) {
        out->region = REGION_ACTIVATIONS;
        out->offset = p->intervals[p->interval_of[root->id]].offset;
    } else {
        const PlanEntry *entry = plan_find(plan, root->name);
        FAIL_IF(!entry, ERR_INTERNAL, "plan: %s has no place", root->name);
        out->region = entry->place.region;
        out->space = entry->place.space;
        out->offset = entry->place.offset;
    }
    out->offset += dtype_bytes(value->type.dtype, p->roots[value->id].offset);
    return OK;
}

Status pass_place(PassContext *context, Graph **graph)
{
    Arena   *arena = context->arena;
    Plan    *plan = context->plan;
    Program *program = context->program;
    Placer   p = {.device = context->device, .graph = *graph, .roots = graph_roots(*graph), .order = order_make(arena, *graph)};
    p.interval_of = arena_array(arena, int, (*graph)->num_values + 1);
    p.workspace_of = arena_array(arena, int, (*graph)->next_node_id + 1);
    p.intervals = arena_array(arena, Interval, (*graph)->num_values + (*graph)->num_nodes + 1);
    for (int i = 0; i < (*graph)->num_values; i++) p.interval_of[i] = -1;
    for (int i = 0; i < (*graph)->next_node_id; i++) p.workspace_of[i] = -1;
    TRY(prove_at_use(&p));
    find_lives(&p, arena);
    share_in_place(&p);
    for (int space = 0; space < SPACE_COUNT; space++) {
        int64_t live, bytes = place_space(&p, arena, (Space)space, context->options->unplaced, &live),
                      *most = &plan->region_bytes[space][REGION_ACTIVATIONS];
        if (bytes > *most) *most = bytes;
        if (space != SPACE_DEVICE) continue;
        program->activation_bytes = bytes;
        program->live_bytes = live;
    }
    program->scratch = arena_array(arena, int64_t, (*graph)->next_node_id + 1);
    for (int i = 0; i < (*graph)->next_node_id; i++)
        program->scratch[i] = p.workspace_of[i] < 0 ? -1 : p.intervals[p.workspace_of[i]].offset;
    program->placement = arena_array(arena, Placement, (*graph)->num_values + 1);
    for (int i = 0; i < (*graph)->num_values; i++) {
        Value *value = (*graph)->values[i];
        bool   removed = value->kind == VALUE_ACTIVATION && !value->producer;
        if (!removed) TRY(placement_of(&p, plan, value, &program->placement[i]));
    }
    return OK;
}
