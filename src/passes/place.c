/* place: one static offset for every buffer. Lasting values are laid out once for all programs of a session (layout_add);
 * activations by liveness, the memory of one reused by others that are never alive with it.
 *
 * Only values with memory of their own are given any; the others lie where their storage does (Value.storage). An element-wise result
 * that takes the memory of an operand (share_in_place) is no storage but such a reuse, by a value that is made as the other dies: it
 * depends on the order of the nodes, and nothing but offsets follows from it. */
#include "base/philox.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/intervals.h"
#include "passes/optimizers.h"
#include "passes/pass.h"
#include "run/order.h"

#include <string.h>

enum {
    PLACE_ALIGN = 256, /* bytes: what vector loads, cuBLASLt and cuDNN ask for at most */
    FLAT_ALIGN = 128,  /* elements between parameters of the flat run: PLACE_ALIGN for two-byte elements */
};

static int64_t align_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- lasting values ---- */

static Status add_entry(Plan *plan, const char *name, const TensorType *type, Region region, Space space, int64_t offset)
{
    FAIL_IF(plan_find(plan, name), ERR_INVALID, "plan: second value named %s", name);
    plan_add(plan, name, type, region, space, offset);
    return OK;
}

static Status append_entry(Plan *plan, const char *name, const TensorType *type, Region region, Space space)
{
    int64_t *end = &plan->region_bytes[space][region], offset = *end;
    *end = align_up(offset + type_bytes(type), PLACE_ALIGN);
    return add_entry(plan, name, type, region, space, offset);
}

/* A parameter that is placed by itself: one that isn't packed, or the memory of packed ones, which are its members. */
static bool is_whole(const Value *value)
{
    return value->kind == VALUE_PARAM && !value->producer && !value->storage;
}

static bool is_trained(const Value *whole)
{
    const Value *member = whole->first_member;
    while (member && !member->param) member = member->next_member;
    return whole->param ? whole->param->trained : member && member->param->trained;
}

static Status add_trained(Plan *plan, const Value *value, const Bucket *bucket, int64_t at)
{
    const char *grad = arena_printf(plan->arena, "grad.%s", value->name);
    TensorType  type = value->type;
    TRY(add_entry(plan, value->name, &type, REGION_WEIGHTS, SPACE_DEVICE, bucket->weight_offset + dtype_bytes(type.dtype, at)));
    type.dtype = bucket->grad;
    TRY(add_entry(plan, grad, &type, REGION_GRADS, SPACE_DEVICE, bucket->grad_offset + dtype_bytes(type.dtype, at)));
    if (!value->param) return OK;
    int64_t *segment = plan->segments[plan->num_trained];
    segment[SEGMENT_OFFSET] = at;
    segment[SEGMENT_NUMEL] = type_numel(&value->type);
    segment[SEGMENT_DECAY] = value->param->decay;
    segment[SEGMENT_KEY] = (int64_t)philox_name_key(value->param->name);
    plan->trained_params[plan->num_trained++] = value->param;
    plan->trained_numel += segment[SEGMENT_NUMEL];
    return OK;
}

static Bucket bucket_of(const CompileOptions *options, const Value *value)
{
    return (Bucket){
        .weight = value->type.dtype, .grad = options->fp32_grads ? DT_F32 : value->type.dtype, .rule = optimizer_rule(options, value)};
}

static bool is_same_bucket(const Bucket *a, const Bucket *b)
{
    return a->weight == b->weight && a->grad == b->grad && a->rule == b->rule;
}

/* Where a state begins for each parameter of a bucket, and how long it is. */
static void layout_state(Plan *plan, const Bucket *bucket, BucketState *state)
{
    enum { ROWS_ALIGN = 64 }; /* elements between parameters */
    int64_t *at = arena_array(plan->arena, int64_t, bucket->count + 1), rows = 0;
    for (int i = 0; i < bucket->count; i++) {
        int64_t offset = plan->segments[bucket->first + i][SEGMENT_OFFSET];
        at[i] = state->extent == STATE_ELEMENTS ? offset : state->extent == STATE_BLOCKS ? MOMENT_FIRST(offset, i) : rows;
        TensorType type = state_type(state, plan->trained_params[bucket->first + i]);
        rows = align_up(rows + type_numel(&type), ROWS_ALIGN);
    }
    state->at = at;
    state->numel = state->extent == STATE_ELEMENTS ? bucket->numel
                   : state->extent == STATE_BLOCKS ? MOMENT_FIRST(bucket->numel, bucket->count)
                                                   : rows;
}

/* The trained parameters of a bucket in the order of the graph, the members of a packed one adjoining. */
static Status layout_bucket(Plan *plan, const CompileOptions *options, const Graph *graph, Bucket *bucket)
{
    int64_t *weights_end = &plan->region_bytes[SPACE_DEVICE][REGION_WEIGHTS], *grads_end = &plan->region_bytes[SPACE_DEVICE][REGION_GRADS];
    bucket->first = plan->num_trained;
    bucket->weight_offset = *weights_end;
    bucket->grad_offset = *grads_end;
    for (int i = 0; i < graph->num_values; i++) {
        const Value *value = graph->values[i];
        int64_t      at = bucket->numel;
        if (!is_whole(value) || !is_trained(value)) continue;
        Bucket its = bucket_of(options, value);
        if (!is_same_bucket(&its, bucket)) continue;
        TRY(add_trained(plan, value, bucket, at));
        for (const Value *member = value->param ? NULL : value->first_member; member; member = member->next_member)
            if (member->param) TRY(add_trained(plan, member, bucket, at + member->offset));
        bucket->numel = align_up(at + type_numel(&value->type), FLAT_ALIGN);
    }
    bucket->count = plan->num_trained - bucket->first;
    TensorType weights = type_make(bucket->weight, 1, bucket->numel), grads = type_make(bucket->grad, 1, bucket->numel);
    TRY(add_entry(plan, bucket->weights, &weights, REGION_WEIGHTS, SPACE_DEVICE, bucket->weight_offset));
    TRY(add_entry(plan, bucket->grads, &grads, REGION_GRADS, SPACE_DEVICE, bucket->grad_offset));
    *weights_end = align_up(bucket->weight_offset + type_bytes(&weights), PLACE_ALIGN);
    *grads_end = align_up(bucket->grad_offset + type_bytes(&grads), PLACE_ALIGN);
    for (int k = 0; k < bucket->num_states; k++) layout_state(plan, bucket, &bucket->states[k]);
    return OK;
}

static const char *bucket_value(Plan *plan, const char *name, int index)
{
    return index ? arena_printf(plan->arena, "%s.%d", name, index + 1) : name;
}

static void name_values(Plan *plan, const CompileOptions *options, Bucket *bucket, int index)
{
    bucket->weights = bucket_value(plan, "weights", index);
    bucket->grads = bucket_value(plan, "grads", index);
    optimizer_states(options, bucket);
    for (int k = 0; k < bucket->num_states; k++)
        bucket->states[k].value = bucket_value(plan, arena_printf(plan->arena, "%s.%s", bucket->rule->name, bucket->states[k].name), index);
}

/* One bucket for each rule and pair of types, in the order in which the graph has them. */
static void find_buckets(Plan *plan, const CompileOptions *options, const Graph *graph)
{
    enum { MAX_BUCKETS = DT_COUNT * 2 * OPTIMIZER_MAX_RULES }; /* a gradient is of its weight's dtype or fp32 */
    plan->buckets = arena_array(plan->arena, Bucket, MAX_BUCKETS);
    for (int i = 0; i < graph->num_values; i++) {
        int k = 0, index = plan->num_buckets;
        if (!is_whole(graph->values[i]) || !is_trained(graph->values[i])) continue;
        Bucket bucket = bucket_of(options, graph->values[i]);
        while (k < index && !is_same_bucket(&plan->buckets[k], &bucket)) k++;
        if (k < index) continue;
        name_values(plan, options, &bucket, index);
        plan->buckets[plan->num_buckets++] = bucket;
    }
}

static Status append_frozen(Plan *plan, const Value *value)
{
    TRY(append_entry(plan, value->name, &value->type, REGION_WEIGHTS, value->space));
    const Placement base = plan_find(plan, value->name)->place;
    for (const Value *member = value->param ? NULL : value->first_member; member; member = member->next_member)
        TRY(add_entry(plan, member->name, &member->type, REGION_WEIGHTS, base.space,
                      base.offset + dtype_bytes(member->type.dtype, member->offset)));
    return OK;
}

/* Trained parameters first, a flat run for each bucket; then the frozen ones. */
static Status layout_params(Plan *plan, const CompileOptions *options, const Graph *graph)
{
    plan->params = graph->params;
    plan->num_params = graph->num_params;
    plan->segments = arena_alloc(plan->arena, sizeof(int64_t[4]) * (size_t)(graph->num_params + 1));
    plan->trained_params = arena_array(plan->arena, Param *, graph->num_params + 1);
    find_buckets(plan, options, graph);
    for (int i = 0; i < plan->num_buckets; i++) TRY(layout_bucket(plan, options, graph, &plan->buckets[i]));
    for (int i = 0; i < graph->num_values; i++)
        if (is_whole(graph->values[i]) && !is_trained(graph->values[i])) TRY(append_frozen(plan, graph->values[i]));
    for (int i = 0; i < graph->num_params; i++) plan->total_numel += type_numel(&graph->params[i]->type);
    return OK;
}

static Region region_of(const Value *value)
{
    switch (value->kind) {
    case VALUE_INPUT:
        return REGION_INPUTS;
    case VALUE_CACHE:
        return REGION_CACHE;
    case VALUE_CONST:
        return REGION_CONSTS;
    default:
        return REGION_OPTIMIZER;
    }
}

/* Whether programs may have a value in different sizes: an input is of a run's shape, and a run of fewer rows uses the first rows of a
 * cache. The largest decides. */
static bool may_grow(const Value *value)
{
    return value->kind == VALUE_INPUT || value->kind == VALUE_CACHE;
}

/* Places the values of a region anew, one behind the other. */
static void repack(Plan *plan, Region region)
{
    for (int space = 0; space < SPACE_COUNT; space++) plan->region_bytes[space][region] = 0;
    for (int i = 0; i < plan->num_entries; i++) {
        Placement *place = &plan->entries[i].place;
        int64_t   *end = &plan->region_bytes[place->space][region];
        if (place->region != region) continue;
        place->offset = *end;
        *end = align_up(place->offset + place->bytes, PLACE_ALIGN);
    }
}

Status layout_add(Plan *plan, const CompileOptions *options, const Graph *graph)
{
    bool has_grown = false;
    if (!plan->params && graph->num_params) TRY(layout_params(plan, options, graph));
    for (int i = 0; i < graph->num_values; i++) {
        const Value     *value = graph->values[i];
        bool             once = value->producer && (value->producer->flags & NODE_ONCE);
        const PlanEntry *entry = plan_find(plan, value->name);
        if (value->kind == VALUE_ACTIVATION || value->kind == VALUE_STAGED || value->storage || (value->producer && !once)) continue;
        if (!entry) {
            TRY(append_entry(plan, value->name, &value->type, region_of(value), value->space));
        } else if (may_grow(value) && type_bytes(&value->type) > entry->place.bytes) {
            PlanEntry *wider = &plan->entries[entry - plan->entries];
            wider->type = value->type;
            wider->place.bytes = type_bytes(&value->type);
            has_grown = true;
        } else if (!may_grow(value)) {
            FAIL_IF(type_bytes(&value->type) != entry->place.bytes, ERR_INVALID, "plan: %s differs in size between programs", value->name);
        }
    }
    if (has_grown) repack(plan, REGION_INPUTS);
    if (has_grown) repack(plan, REGION_CACHE);
    return OK;
}

/* ---- activations ---- */

/* A workspace from this size on isn't kept apart for all launches, but lies among the activations while its launch runs: that of the
 * output head is as large as those of a block, and needed when few of them are alive. */
enum { LARGE_WORKSPACE = 64 << 20 };

typedef struct Placer {
    Device      *device;
    const Graph *graph;
    const Root  *roots; /* by value id */
    const Order *order;
    int         *interval_of;  /* by value id of roots: index into intervals, -1 */
    int         *workspace_of; /* by node id: the same of its large workspace */
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

/* What is made at use isn't alive from a forward node to a backward one. */
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

/* With several streams a life ends where every later result is made after its last touch. */
static void extend_beside(Placer *p, const int *index_of_launch)
{
    for (int i = 0; i < p->num; i++) {
        int last = order_last_beside(p->order, p->graph->values[p->intervals[i].id]);
        if (last >= 0 && index_of_launch[last] > p->intervals[i].end) p->intervals[i].end = index_of_launch[last];
    }
}

/* The large workspace of a node, alive while it runs. On several streams others could reuse it meanwhile: there it is kept apart. */
static void begin_workspace(Placer *p, const Node *node, int index)
{
    BoundKernel kernel = {0};
    if (!order_is_single(p->order) || !node_is_launch(node)) return;
    if (p->device->api->bind(p->device, node, &kernel) != OK) status_clear(); /* pass emit says it */
    if (kernel.workspace_bytes < LARGE_WORKSPACE) return;
    p->workspace_of[node->id] = p->num;
    p->intervals[p->num++] =
        (Interval){p->graph->num_values + index, index, index, align_up((int64_t)kernel.workspace_bytes, PLACE_ALIGN), 0};
}

/* Values of a kind that are their own memory live from here on, unless they do already. */
static void begin_life(Placer *p, const Value *value, ValueKind kind, int index)
{
    if (!value || p->roots[value->id].value != value || value->kind != kind || p->interval_of[value->id] >= 0) return;
    p->interval_of[value->id] = p->num;
    p->intervals[p->num++] = (Interval){value->id, index, index, align_up(type_bytes(&value->type), PLACE_ALIGN), 0};
}

static void find_lives(Placer *p, Arena *arena)
{
    int  index = 0, launch = 0;
    int *index_of_launch = arena_array(arena, int, p->graph->num_nodes + 1);
    for (Node *node = p->graph->first; node; node = node->next) {
        if (node->flags & NODE_ONCE) continue;
        if (node_is_launch(node)) index_of_launch[launch++] = index;
        for (int i = 0; i < node->num_in; i++) begin_life(p, node->in[i], VALUE_STAGED, index);
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

/* An element-wise result takes the memory of an input that dies there. */
static void share_in_place(Placer *p)
{
    int index = -1, launch = -1;
    for (Node *node = p->graph->first; node; node = node->next) {
        if (node->flags & NODE_ONCE) continue;
        index++;
        launch += node_is_launch(node);
        Value *out = node->out[0];
        if (!(node->op->flags & OP_INPLACE) || !out || p->interval_of[out->id] < 0) continue;
        int sides = node->op->flags & OP_COMMUTES ? 2 : 1;
        for (int i = 0; i < sides; i++) {
            const Value *in = node->in[i], *root = in ? p->roots[in->id].value : NULL;
            Interval    *from = in ? find_interval(p, in) : NULL, *to = &p->intervals[p->interval_of[out->id]];
            if (!from || from == to || from->end != index || from->bytes != to->bytes || to->start != index) continue;
            if (root->space != out->space || !order_is_last_touch(p->order, root, launch)) continue;
            from->end = to->end;
            to->bytes = 0; /* nothing of its own any more */
            p->interval_of[out->id] = (int)(from - p->intervals);
            break;
        }
    }
}

/* Places the intervals of one space; *out_live as intervals_place. */
static int64_t place_space(Placer *p, Arena *arena, Space space, int64_t *out_live)
{
    Interval *items = arena_array(arena, Interval, p->num + 1);
    int      *from = arena_array(arena, int, p->num + 1), count = 0;
    for (int i = 0; i < p->num; i++) {
        bool is_workspace = p->intervals[i].id >= p->graph->num_values;
        if ((is_workspace ? SPACE_DEVICE : p->graph->values[p->intervals[i].id]->space) != space) continue;
        from[count] = i;
        items[count++] = p->intervals[i];
    }
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
        int64_t live, bytes = place_space(&p, arena, (Space)space, &live), *most = &plan->region_bytes[space][REGION_ACTIVATIONS];
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
