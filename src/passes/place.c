/* place: one static offset for every buffer. Lasting values are laid out once for all programs of a session (layout_add);
 * activations by liveness, the memory of one reused by others that are never alive with it. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"

#include <stdlib.h>
#include <string.h>

enum {
    PLACE_ALIGN = 256,  /* bytes: what vector loads, cuBLASLt and cuDNN ask for at most */
    FLAT_ALIGN = 128,   /* elements between parameters of the flat run: PLACE_ALIGN for two-byte elements */
};

static int64_t align_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- lasting values ---- */

static Status add_entry(Plan *plan, const char *name, const TensorType *type, Region region, int64_t offset)
{
    FAIL_IF(plan_find(plan, name), ERR_INTERNAL, "plan: second value named %s", name);
    plan_add(plan, name, type, region, offset);
    return OK;
}

static Status append_entry(Plan *plan, const char *name, const TensorType *type, Region region)
{
    int64_t offset = plan->region_bytes[region];
    plan->region_bytes[region] = align_up(offset + type_bytes(type), PLACE_ALIGN);
    return add_entry(plan, name, type, region, offset);
}

/* A parameter that is placed by itself: one that isn't packed, its own only member, or a packed one with its members in order. */
typedef struct Whole {
    Value  *value;
    Value **members;
    int     num_members;
} Whole;

static Whole *find_wholes(const Graph *graph, int *out_num)
{
    Whole *wholes = arena_array(graph->arena, Whole, graph->num_values + 1);
    int   *index = arena_array(graph->arena, int, graph->num_values + 1), num = 0; /* by value id */
    for (int i = 0; i < graph->num_values; i++) {
        Value *value = graph->values[i];
        if (value->kind != VALUE_PARAM || value->producer || value->base) continue;
        index[i] = num;
        wholes[num++] = (Whole){ .value = value, .num_members = value->param != NULL };
    }
    for (int turn = 0; turn < 2; turn++) /* counts the members, then takes them */
        for (int i = 0; i < graph->num_values; i++) {
            Value *value = graph->values[i];
            if (value->kind != VALUE_PARAM || value->producer || !value->base || !value->param) continue;
            Whole *whole = &wholes[index[value->base->id]];
            if (turn == 1 && !whole->members) {
                whole->members = arena_array(graph->arena, Value *, whole->num_members);
                whole->num_members = 0;
            }
            if (turn == 1) whole->members[whole->num_members] = value;
            whole->num_members++;
        }
    for (int i = 0; i < num; i++)
        if (wholes[i].value->param) wholes[i].members = &wholes[i].value;
    *out_num = num;
    return wholes;
}

static bool is_trained(const Whole *whole)
{
    return whole->num_members && whole->members[0]->param->trained;
}

static Status add_trained(Plan *plan, const Value *value, const Bucket *bucket, int64_t at)
{
    const char *grad = arena_printf(plan->arena, "grad.%s", value->name);
    TensorType  type = value->type;
    TRY(add_entry(plan, value->name, &type, REGION_WEIGHTS, bucket->weight_offset + at * dtype_bytes(type.dtype)));
    type.dtype = bucket->grad;
    TRY(add_entry(plan, grad, &type, REGION_GRADS, bucket->grad_offset + at * dtype_bytes(type.dtype)));
    if (!value->param) return OK;
    int64_t *segment = plan->segments[plan->num_trained];
    segment[SEGMENT_OFFSET] = at;
    segment[SEGMENT_NUMEL] = type_numel(&value->type);
    segment[SEGMENT_DECAY] = value->param->decay;
    uint64_t h = 0xcbf29ce484222325u; /* random numbers follow the name, not the place */
    for (const char *p = value->param->name; *p; p++) h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    segment[SEGMENT_KEY] = (int64_t)(h >> 16);
    plan->trained_params[plan->num_trained++] = value->param;
    plan->trained_numel += segment[SEGMENT_NUMEL];
    return OK;
}

static Bucket bucket_of(const CompileOptions *options, const Value *value)
{
    return (Bucket){ .weight = value->type.dtype, .grad = options->fp32_grads ? DT_F32 : value->type.dtype };
}

/* The trained parameters of these types in the order of the graph, the members of a packed one adjoining. */
static Status layout_bucket(Plan *plan, const CompileOptions *options, const Whole *wholes, int num_wholes, Bucket *bucket)
{
    bucket->first = plan->num_trained;
    bucket->weight_offset = plan->region_bytes[REGION_WEIGHTS];
    bucket->grad_offset = plan->region_bytes[REGION_GRADS];
    for (int i = 0; i < num_wholes; i++) {
        const Whole *whole = &wholes[i];
        Value       *value = whole->value;
        Bucket       its = bucket_of(options, value);
        int64_t      at = bucket->numel;
        if (!is_trained(whole) || its.weight != bucket->weight || its.grad != bucket->grad) continue;
        if (!value->param) TRY(add_trained(plan, value, bucket, at));
        for (int k = 0; k < whole->num_members; k++)
            TRY(add_trained(plan, whole->members[k], bucket, at + (value->param ? 0 : whole->members[k]->base_offset)));
        bucket->numel = align_up(at + type_numel(&value->type), FLAT_ALIGN);
    }
    bucket->count = plan->num_trained - bucket->first;
    TensorType weights = type_make(bucket->weight, 1, bucket->numel), grads = type_make(bucket->grad, 1, bucket->numel);
    TRY(add_entry(plan, bucket->weights, &weights, REGION_WEIGHTS, bucket->weight_offset));
    TRY(add_entry(plan, bucket->grads, &grads, REGION_GRADS, bucket->grad_offset));
    plan->region_bytes[REGION_WEIGHTS] = align_up(bucket->weight_offset + type_bytes(&weights), PLACE_ALIGN);
    plan->region_bytes[REGION_GRADS] = align_up(bucket->grad_offset + type_bytes(&grads), PLACE_ALIGN);
    return OK;
}

static const char *bucket_value(Plan *plan, const char *name, int index)
{
    return index ? arena_printf(plan->arena, "%s.%d", name, index + 1) : name;
}

/* One bucket for each pair of types, in the order in which the graph has them. */
static void find_buckets(Plan *plan, const CompileOptions *options, const Whole *wholes, int num_wholes)
{
    enum { MAX_BUCKETS = DT_COUNT * 2 }; /* a gradient is of its weight's dtype or fp32 */
    plan->buckets = arena_array(plan->arena, Bucket, MAX_BUCKETS);
    for (int i = 0; i < num_wholes; i++) {
        Bucket bucket = bucket_of(options, wholes[i].value);
        int    k = 0, index = plan->num_buckets;
        if (!is_trained(&wholes[i])) continue;
        while (k < index && (plan->buckets[k].weight != bucket.weight || plan->buckets[k].grad != bucket.grad)) k++;
        if (k < index) continue;
        bucket.weights = bucket_value(plan, "weights", index);
        bucket.grads = bucket_value(plan, "grads", index);
        bucket.m = bucket_value(plan, "adam.m", index);
        bucket.v = bucket_value(plan, "adam.v", index);
        if (options->master_weights && dtype_bytes(bucket.weight) < dtype_bytes(options->master_dtype))
            bucket.master = bucket_value(plan, "master", index);
        plan->buckets[plan->num_buckets++] = bucket;
    }
}

static Status layout_frozen(Plan *plan, const Whole *whole)
{
    const Value *value = whole->value;
    TRY(append_entry(plan, value->name, &value->type, REGION_WEIGHTS));
    if (value->param) return OK;
    const Placement base = plan_find(plan, value->name)->place;
    for (int k = 0; k < whole->num_members; k++) {
        const Value *member = whole->members[k];
        TRY(add_entry(plan, member->name, &member->type, REGION_WEIGHTS,
                      base.offset + member->base_offset * dtype_bytes(member->type.dtype)));
    }
    return OK;
}

/* Trained parameters first, a flat run for each bucket; then the frozen ones. */
static Status layout_params(Plan *plan, const CompileOptions *options, const Graph *graph)
{
    int    num_wholes;
    Whole *wholes = find_wholes(graph, &num_wholes);
    plan->params = graph->params;
    plan->num_params = graph->num_params;
    plan->segments = arena_alloc(plan->arena, sizeof(int64_t[4]) * (size_t)(graph->num_params + 1));
    plan->trained_params = arena_array(plan->arena, Param *, graph->num_params + 1);
    find_buckets(plan, options, wholes, num_wholes);
    for (int i = 0; i < plan->num_buckets; i++) TRY(layout_bucket(plan, options, wholes, num_wholes, &plan->buckets[i]));
    for (int i = 0; i < num_wholes; i++)
        if (!is_trained(&wholes[i])) TRY(layout_frozen(plan, &wholes[i]));
    for (int i = 0; i < graph->num_params; i++) plan->total_numel += type_numel(&graph->params[i]->type);
    return OK;
}

static Region region_of(const Value *value)
{
    switch (value->kind) {
    case VALUE_INPUT: return REGION_INPUTS;
    case VALUE_CACHE: return REGION_CACHE;
    case VALUE_CONST: return REGION_CONSTS;
    default: return REGION_OPTIMIZER;
    }
}

Status layout_add(Plan *plan, const CompileOptions *options, const Graph *graph)
{
    if (!plan->params && graph->num_params) TRY(layout_params(plan, options, graph));
    for (int i = 0; i < graph->num_values; i++) {
        const Value     *value = graph->values[i];
        bool             once = value->producer && (value->producer->flags & NODE_ONCE);
        const PlanEntry *entry = plan_find(plan, value->name);
        if (value->kind == VALUE_ACTIVATION || value->base || (value->producer && !once)) continue;
        if (!entry) {
            TRY(append_entry(plan, value->name, &value->type, region_of(value)));
        } else if (value->kind == VALUE_INPUT && type_bytes(&value->type) > entry->place.bytes) {
            /* Programs read the same input with other shapes: the largest decides. The smaller place is left unused. */
            PlanEntry *wider = &plan->entries[entry - plan->entries];
            wider->type = value->type;
            wider->place.bytes = type_bytes(&value->type);
            wider->place.offset = plan->region_bytes[REGION_INPUTS];
            plan->region_bytes[REGION_INPUTS] = align_up(wider->place.offset + wider->place.bytes, PLACE_ALIGN);
        } else if (value->kind != VALUE_INPUT) {
            FAIL_IF(type_bytes(&value->type) != entry->place.bytes, ERR_INTERNAL, "plan: %s differs in size between programs",
                    value->name);
        }
    }
    return OK;
}

/* ---- activations ---- */

typedef struct Interval {
    int     id;          /* of the root value */
    int     start, end;  /* node indexes, inclusive */
    int64_t bytes, offset;
} Interval;

typedef struct Placer {
    const Graph *graph;
    Program     *program;
    int         *interval_of; /* by value id of roots: index into intervals, -1 */
    Interval    *intervals;
    int          num, num_nodes;
} Placer;

static Interval *find_interval(Placer *p, Value *value)
{
    Value *root = value_root(value, NULL);
    int    index = p->interval_of[root->id];
    return index < 0 ? NULL : &p->intervals[index];
}

static void extend(Placer *p, Value *value, int index)
{
    Interval *interval = value ? find_interval(p, value) : NULL;
    if (interval && interval->end < index) interval->end = index;
}

static void find_lives(Placer *p)
{
    int index = 0;
    for (Node *node = p->graph->first; node; node = node->next) {
        if (node->flags & NODE_ONCE) continue;
        for (int k = 0; k < node->num_out; k++) {
            Value *out = node->out[k];
            if (!out || value_root(out, NULL) != out || out->kind != VALUE_ACTIVATION) continue;
            p->interval_of[out->id] = p->num;
            p->intervals[p->num++] = (Interval){ out->id, index, index, align_up(type_bytes(&out->type), PLACE_ALIGN), 0 };
        }
        for (int i = 0; i < node->num_in; i++) extend(p, node->in[i], index);
        for (int k = 0; k < node->num_out; k++) extend(p, node->out[k], index);
        index++;
    }
    for (int i = 0; i < p->graph->num_outputs; i++) extend(p, p->graph->outputs[i].value, index);
    p->num_nodes = index + 1;
}

/* An element-wise result takes the memory of an input that dies there. */
static void share_in_place(Placer *p)
{
    int index = -1;
    for (Node *node = p->graph->first; node; node = node->next) {
        if (node->flags & NODE_ONCE) continue;
        index++;
        Value *out = node->out[0];
        if (!(node->op->flags & OP_INPLACE) || !out || p->interval_of[out->id] < 0) continue;
        int sides = node->op->flags & OP_COMMUTES ? 2 : 1;
        for (int i = 0; i < sides; i++) {
            Value    *in = node->in[i];
            Interval *from = in ? find_interval(p, in) : NULL, *to = &p->intervals[p->interval_of[out->id]];
            if (!from || from == to || from->end != index || from->bytes != to->bytes || to->start != index) continue;
            from->end = to->end;
            to->bytes = 0; /* nothing of its own any more */
            p->interval_of[out->id] = (int)(from - p->intervals);
            break;
        }
    }
}

static int by_size(const void *a, const void *b)
{
    const Interval *x = *(Interval *const *)a, *y = *(Interval *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    if (x->end - x->start != y->end - y->start) return x->end - x->start < y->end - y->start ? 1 : -1;
    return x->id - y->id;
}

static int by_start(const void *a, const void *b)
{
    const Interval *x = *(Interval *const *)a, *y = *(Interval *const *)b;
    if (x->start != y->start) return x->start - y->start;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->id - y->id;
}

static int by_area(const void *a, const void *b)
{
    const Interval *x = *(Interval *const *)a, *y = *(Interval *const *)b;
    double          ax = (double)x->bytes * (x->end - x->start + 1), ay = (double)y->bytes * (y->end - y->start + 1);
    if (ax != ay) return ax < ay ? 1 : -1;
    return x->id - y->id;
}

/* Places items in the given order, each at the smallest gap that fits between those alive with it. `placed` stays sorted by
 * offset. Returns the height. */
static int64_t place_in_order(Interval **items, int num, Interval **placed)
{
    int64_t height = 0;
    for (int n = 0; n < num; n++) {
        Interval *item = items[n];
        int64_t   best = -1, best_gap = INT64_MAX, end = 0;
        for (int k = 0; k < n; k++) {
            const Interval *other = placed[k];
            if (other->start > item->end || other->end < item->start) continue;
            int64_t gap = other->offset - end;
            if (gap >= item->bytes && gap < best_gap) {
                best = end;
                best_gap = gap;
            }
            if (other->offset + other->bytes > end) end = other->offset + other->bytes;
        }
        item->offset = best >= 0 ? best : end;
        if (item->offset + item->bytes > height) height = item->offset + item->bytes;
        int at = n;
        while (at > 0 && placed[at - 1]->offset > item->offset) {
            placed[at] = placed[at - 1];
            at--;
        }
        placed[at] = item;
    }
    return height;
}

static int64_t largest_live(const Placer *p, Arena *arena)
{
    int64_t *delta = arena_array(arena, int64_t, p->num_nodes + 2), live = 0, most = 0;
    for (int i = 0; i < p->num; i++) {
        delta[p->intervals[i].start] += p->intervals[i].bytes;
        delta[p->intervals[i].end + 1] -= p->intervals[i].bytes;
    }
    for (int i = 0; i <= p->num_nodes; i++) {
        live += delta[i];
        if (live > most) most = live;
    }
    return most;
}

typedef struct Placing {
    Interval **items, **placed;
    int        num;
    int64_t   *best; /* offsets of the lowest placing so far, by interval */
    int64_t    height;
} Placing;

static void try_order(const Placer *p, Placing *t)
{
    int64_t height = place_in_order(t->items, t->num, t->placed);
    if (height >= t->height) return;
    t->height = height;
    for (int i = 0; i < p->num; i++) t->best[i] = p->intervals[i].offset;
}

/* What reaches highest goes first next time. */
static void raise_highest(Placing *t)
{
    int highest = 0;
    for (int i = 1; i < t->num; i++)
        if (t->items[i]->offset + t->items[i]->bytes > t->items[highest]->offset + t->items[highest]->bytes) highest = i;
    Interval *item = t->items[highest];
    memmove(t->items + 1, t->items, sizeof *t->items * (size_t)highest);
    t->items[0] = item;
}

/* Largest first is within a few percent of the bound; where it isn't, other orders and then repairs of the last one are tried. */
static void place_activations(Placer *p, Arena *arena)
{
    enum { REPAIRS = 64, REPAIRED_INTERVALS = 4096 };
    int (*const orders[])(const void *, const void *) = { by_size, by_area, by_start };
    Placing t = { .height = INT64_MAX };
    t.items = arena_array(arena, Interval *, p->num + 1);
    t.placed = arena_array(arena, Interval *, p->num + 1);
    t.best = arena_array(arena, int64_t, p->num + 1);
    p->program->live_bytes = largest_live(p, arena);
    for (int i = 0; i < p->num; i++)
        if (p->intervals[i].bytes) t.items[t.num++] = &p->intervals[i];
    int64_t enough = p->program->live_bytes + p->program->live_bytes / 128;
    for (int order = 0; order < 3 && t.height > enough; order++) {
        qsort(t.items, (size_t)t.num, sizeof(Interval *), orders[order]);
        try_order(p, &t);
    }
    for (int i = 0; i < REPAIRS && t.height > enough && t.num <= REPAIRED_INTERVALS; i++) {
        raise_highest(&t);
        try_order(p, &t);
    }
    for (int i = 0; i < p->num; i++) p->intervals[i].offset = t.best[i];
    p->program->activation_bytes = t.num ? t.height : 0;
}

static Status placement_of(Placer *p, const Plan *plan, Value *value, Placement *out)
{
    int64_t offset;
    Value  *root = value_root(value, &offset);
    *out = (Placement){ .bytes = type_bytes(&value->type) };
    if (p->interval_of[root->id] >= 0) {
        out->region = REGION_ACTIVATIONS;
        out->offset = p->intervals[p->interval_of[root->id]].offset;
    } else {
        const PlanEntry *entry = plan_find(plan, root->name);
        FAIL_IF(!entry, ERR_INTERNAL, "plan: %s has no place", root->name);
        out->region = entry->place.region;
        out->offset = entry->place.offset;
    }
    out->offset += offset * dtype_bytes(value->type.dtype);
    return OK;
}

Status pass_place(PassContext *context, Graph **graph)
{
    Arena  *arena = context->arena;
    Plan   *plan = context->plan;
    Program *program = context->program;
    Placer  p = { .graph = *graph, .program = program };
    p.interval_of = arena_array(arena, int, (*graph)->num_values + 1);
    p.intervals = arena_array(arena, Interval, (*graph)->num_values + 1);
    for (int i = 0; i < (*graph)->num_values; i++) p.interval_of[i] = -1;
    find_lives(&p);
    share_in_place(&p);
    place_activations(&p, arena);
    if (program->activation_bytes > plan->region_bytes[REGION_ACTIVATIONS])
        plan->region_bytes[REGION_ACTIVATIONS] = program->activation_bytes;
    program->placement = arena_array(arena, Placement, (*graph)->num_values + 1);
    for (int i = 0; i < (*graph)->num_values; i++) {
        Value *value = (*graph)->values[i];
        bool   removed = value->kind == VALUE_ACTIVATION && !value->producer;
        if (!removed) TRY(placement_of(&p, plan, value, &program->placement[i]));
    }
    return OK;
}
