/* The layout of lasting values: one for all programs of a session. Trained parameters lie in flat runs, the buckets. The parameters of a
 * bucket have the same rule of the optimizer, dtypes of weight and gradient, division among ranks, and space (device or host).
 *
 * With several ranks a bucket is cut into chunks of whole values, each a multiple of SHARE_ALIGN elements for each rank, and a rank owns
 * its share of each chunk. Shares begin with a block of moments, and a piece of a parameter knows its first element: so an update has the
 * same blocks and draws the same random numbers, whatever the number of ranks.
 *
 * Values that are updated as a whole stand in groups: one value for each rank, all of one type. Rank r updates value r of each group. If
 * every rank holds gradients and weights whole, a group is a chunk. Else each value of the group is a chunk, and a rank's shares of all of
 * them make a run of the size of one value. Packed weights stand in such groups too if equal shares would cut their blocks of moments. */
#include "passes/layout.h"

#include "base/philox.h"
#include "ops/attrs.h"
#include "passes/optimizers.h"
#include "passes/pass.h"

#include <stdlib.h>
#include <string.h>

enum {
    FLAT_ALIGN = 128,           /* alignment in elements of parameters in the flat run: PLACE_ALIGN for two-byte elements */
    SHARE_ALIGN = MOMENT_BLOCK, /* alignment in elements if ranks share the run; a share is a multiple of it */
};

int64_t layout_align(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static Status add_entry(Plan *plan, const char *name, const TensorType *type, Region region, Space space, int64_t offset)
{
    FAIL_IF(plan_find(plan, name), ERR_INVALID, "plan: second value named %s", name);
    plan_add(plan, name, type, region, space, offset);
    return OK;
}

static Status append_entry(Plan *plan, const char *name, const TensorType *type, Region region, Space space)
{
    int64_t *end = &plan->region_bytes[space][region], offset = *end;
    *end = layout_align(offset + type_bytes(type), PLACE_ALIGN);
    return add_entry(plan, name, type, region, space, offset);
}

bool layout_is_whole(const Value *value)
{
    return value->kind == VALUE_PARAM && !value->producer && !value->storage;
}

const Value *layout_next_param(const Value *whole, const Value *last)
{
    if (whole->param) return last ? NULL : whole;
    const Value *member = last ? last->next_member : whole->first_member;
    while (member && !member->param) member = member->next_member;
    return member;
}

const Param *layout_first_param(const Value *whole)
{
    const Value *first = layout_next_param(whole, NULL);
    return first ? first->param : NULL;
}

static bool is_trained(const Value *whole)
{
    const Param *param = layout_first_param(whole);
    return param && param->trained;
}

/* See layout.h. Adapters stay on the device: they are small, and nothing else is trained. */
Space layout_space(const CompileOptions *options, const Value *whole)
{
    const Param *param = layout_first_param(whole);
    bool         codes = !param || param->format, quants = options->offload >> OFFLOAD_QUANTS & 1;
    if (param && param->is_adapter) return whole->space;
    return options->offload >> OFFLOAD_WEIGHTS & 1 || (codes && quants) ? SPACE_HOST : whole->space;
}

/* ---- buckets ---- */

/* The value begins at element `at` of `numel` elements. Whether equal shares of these elements would cut a block of moments of one of the
 * value's parameters. */
static bool cuts_blocks(const Value *whole, int64_t at, int64_t numel, int world)
{
    for (const Value *part = NULL; (part = layout_next_param(whole, part));) {
        int64_t begin = at + part->offset, end = begin + type_numel(&part->type);
        for (int r = 1; r < world; r++) {
            int64_t cut = r * (numel / world);
            if (cut > begin && cut < end && (cut - begin) % MOMENT_BLOCK) return true;
        }
    }
    return false;
}

static bool has_blocks(const OptimizerRule *rule)
{
    for (const StateRule *state = rule->states; state->name; state++)
        if (state->extent == STATE_BLOCKS) return true;
    return false;
}

/* Whether a value may be cut into equal shares: a block of moments has one scale, so it belongs to one rank. */
static bool can_be_cut(const CompileOptions *options, const Value *whole)
{
    int64_t numel = type_numel(&whole->type);
    return !is_trained(whole) || !has_blocks(optimizer_rule(options, whole)) || !cuts_blocks(whole, 0, numel, options->world);
}

/* Whether ranks divide a value into equal shares. Norms and other small values stay whole: they take little memory, and each would cost a
 * gather. */
static bool is_divided(const CompileOptions *options, const Value *whole)
{
    const TensorType *type = &whole->type;
    bool              is_read = false; /* some member has readers of its own: they need the whole value in memory */
    for (const Value *member = whole->first_member; member; member = member->next_member) is_read = is_read || member->first_use;
    return type->ndim > 1 && !is_read && type_numel(type) % (SHARE_ALIGN * options->world) == 0 &&
           type_bytes(type) >= options->whole_bytes && can_be_cut(options, whole);
}

static Division division_of(const CompileOptions *options, const Value *whole)
{
    return options->world > 1 && is_divided(options, whole) ? (Division)options->zero_level : DIVIDE_STATES;
}

/* Gradients that cross whole at the end of a step, and those of adapters, stay on the device even with offload_grads. */
Space layout_grad_space(const CompileOptions *options, const Value *whole)
{
    bool stays = layout_first_param(whole)->is_adapter || (options->world > 1 && division_of(options, whole) == DIVIDE_STATES);
    return options->offload >> OFFLOAD_GRADS & 1 && !stays ? SPACE_HOST : SPACE_DEVICE;
}

/* Whether a parameter of the value begins elsewhere than at a multiple of MOMENT_BLOCK elements of the value. */
static bool has_odd_blocks(const Value *whole)
{
    for (const Value *part = NULL; (part = layout_next_param(whole, part));)
        if (part->offset % MOMENT_BLOCK) return true;
    return false;
}

static Bucket bucket_of(const CompileOptions *options, const Value *value, bool by_value)
{
    const OptimizerRule *rule = optimizer_rule(options, value);
    Division             division = division_of(options, value);
    bool gathered = options->world > 1 && division != DIVIDE_WEIGHTS; /* held whole by each rank: collectives fill it, on the device */
    return (Bucket){.weight = value->type.dtype,
                    .grad = options->fp32_grads ? DT_F32 : value->type.dtype,
                    .rule = rule,
                    .division = division,
                    .by_value = by_value && division == DIVIDE_STATES && has_blocks(rule) && has_odd_blocks(value),
                    .space = gathered ? SPACE_DEVICE : layout_space(options, value),
                    .grad_space = layout_grad_space(options, value)};
}

static bool is_same_bucket(const Bucket *a, const Bucket *b)
{
    return a->weight == b->weight && a->grad == b->grad && a->rule == b->rule && a->division == b->division && a->by_value == b->by_value &&
           a->space == b->space && a->grad_space == b->grad_space;
}

/* A trained parameter, or the packed memory of several parameters, in the flat run. */
typedef struct Run {
    const Value *value;
    int64_t      at;
    int          chunk, group;
    int64_t      read;  /* Node.order of the value's first reader */
    int          index; /* position in the order of the graph */
} Run;

static void end_chunk(Bucket *bucket, int world, int64_t end)
{
    Chunk *chunk = &bucket->chunks[bucket->num_chunks++];
    bucket->numel = layout_align(end, world > 1 ? SHARE_ALIGN * world : FLAT_ALIGN);
    chunk->numel = bucket->numel - chunk->first;
    chunk[1].first = bucket->numel;
}

/* The least bytes of a chunk. Nothing runs beside the transfer of the last gradients, so a chunk is a sixteenth of all gradients. But it
 * has at least the bytes with which a transfer reaches half of the links' speed, and at most the bytes with which it reaches nine
 * tenths. */
static int64_t least_chunk(const Plan *plan, const CompileOptions *options, int64_t all)
{
    enum { PARTS = 16, UNKNOWN_LINKS = 32 << 20 };
    int64_t part = all / PARTS, least = link_bytes_at(&plan->facts, plan->world, 0.5), most = link_bytes_at(&plan->facts, plan->world, 0.9);
    if (options->chunk_bytes) return options->chunk_bytes;
    if (!most) return UNKNOWN_LINKS;
    return part < least ? least : part > most ? most : part;
}

/* Places values one after the other. If gradients cross as soon as they are made, a chunk is one value; else it may have several. */
static void place_runs(const Plan *plan, const CompileOptions *options, Bucket *bucket, Run *runs, int count)
{
    int64_t all = 0;
    for (int i = 0; i < count; i++) all += type_bytes(&runs[i].value->type);
    int64_t least = least_chunk(plan, options, all), end = 0, align = options->world > 1 ? SHARE_ALIGN : FLAT_ALIGN;
    for (int i = 0; i < count; i++) {
        runs[i].at = layout_align(end, align);
        runs[i].chunk = bucket->num_chunks;
        end = runs[i].at + type_numel(&runs[i].value->type);
        bool is_large = dtype_bytes(bucket->weight, end - bucket->chunks[bucket->num_chunks].first) >= least;
        if (i + 1 < count && (options->world == 1 || (bucket->division == DIVIDE_STATES && !is_large))) continue;
        end_chunk(bucket, options->world, end);
        end = bucket->numel;
    }
}

/* Chooses the ranks that get the next `count` matrices of one type, one each: the ranks with the least `work` so far. Sets is_chosen for
 * each rank, and adds to the work of each chosen rank. */
static void choose_ranks(const TensorType *type, int world, int count, double *work, bool *is_chosen)
{
    double cost = (double)type_numel(type) * (double)(type->dim[0] < type->dim[1] ? type->dim[0] : type->dim[1]);
    for (int r = 0; r < world; r++) is_chosen[r] = false;
    for (int i = 0; i < count; i++) {
        int least = -1;
        for (int r = 0; r < world; r++)
            if (!is_chosen[r] && (least < 0 || work[r] < work[least])) least = r;
        is_chosen[least] = true;
        work[least] += cost;
    }
}

/* Places one group: `count` values of one type, at most one for each rank. */
static void place_group(Arena *arena, const CompileOptions *options, Bucket *bucket, Run *runs, int count, double *work)
{
    const TensorType *type = &runs[0].value->type;
    const int         world = options->world;
    int64_t           each = layout_align(type_numel(type), SHARE_ALIGN), first = bucket->numel;
    bool             *is_chosen = arena_array(arena, bool, world);
    choose_ranks(type, world, count, work, is_chosen);
    for (int r = 0, i = 0; r < world; r++) {
        if (!is_chosen[r]) continue;
        runs[i].at = first + r * each;
        runs[i].group = bucket->num_groups;
        runs[i].chunk = bucket->num_chunks;
        if (bucket->division != DIVIDE_STATES) bucket->chunks[bucket->num_chunks++] = (Chunk){.first = runs[i].at, .numel = each};
        i++;
    }
    const Chunk group = {.first = first, .numel = each * world};
    bucket->groups[bucket->num_groups++] = group;
    if (bucket->division == DIVIDE_STATES) bucket->chunks[bucket->num_chunks++] = group;
    bucket->numel = first + group.numel;
}

/* Places values type by type, in groups with at most one value for each rank. */
static void place_whole_runs(Arena *arena, const CompileOptions *options, Bucket *bucket, Run *runs, int count)
{
    Run    *sorted = arena_array(arena, Run, count + 1);
    double *work = arena_array(arena, double, options->world);
    int     num = 0, first;
    bucket->groups = arena_array(arena, Chunk, count + 1);
    for (int i = 0; i < count; i++) {
        if (!runs[i].value) continue;
        const TensorType type = runs[i].value->type;
        first = num;
        for (int k = i; k < count; k++) {
            if (!runs[k].value || !type_same_dims(&runs[k].value->type, &type)) continue;
            sorted[num++] = runs[k];
            runs[k].value = NULL;
        }
        for (; first < num; first += options->world)
            place_group(arena, options, bucket, sorted + first, num - first < options->world ? num - first : options->world, work);
    }
    memcpy(runs, sorted, sizeof *runs * (size_t)count);
}

/* The piece that this rank owns of elements [at, at + numel) of the bucket, which are all in one chunk. The result's .at is an element of
 * the rank's share. */
static PlanPiece own(const Plan *plan, const Chunk *chunk, int64_t at, int64_t numel)
{
    int64_t share = chunk->numel / plan->world, begin = chunk->first + plan->rank * share, end = begin + share;
    int64_t first = at > begin ? at : begin, last = at + numel < end ? at + numel : end;
    if (first >= last) first = last = at < begin ? begin : end;
    return (PlanPiece){.first = first < last ? first - at : 0, .numel = last - first, .at = chunk->first / plan->world + first - begin};
}

/* Adds a weight, which begins at element `at` of memory that begins `base` bytes into its region. share: all that this rank keeps of the
 * weight; NULL: it keeps the whole. */
static Status add_weight(Plan *plan, const Value *value, Space space, int64_t base, int64_t at, const PlanPiece *share)
{
    TensorType type = share ? type_make(value->type.dtype, 1, share->numel) : value->type;
    TRY(add_entry(plan, value->name, &type, REGION_WEIGHTS, space, base + dtype_bytes(type.dtype, share ? share->at : at)));
    plan->entries[plan->num_entries - 1].first = share ? share->first : 0;
    return OK;
}

/* Adds a trained value (the whole run, or a member of it) that begins at element `at` of the bucket, and its gradient. */
static Status add_trained(Plan *plan, const Value *value, const Bucket *bucket, const Run *run, int64_t at)
{
    const char *grad = arena_printf(plan->arena, "grad.%s", value->name);
    TensorType  type = value->type;
    PlanPiece   share = own(plan, &bucket->chunks[run->chunk], at, type_numel(&type));
    share.value = bucket->weight_share;
    TRY(add_weight(plan, value, bucket->space, bucket->weight_offset, at, bucket->division == DIVIDE_WEIGHTS ? &share : NULL));
    int entry = plan->num_entries - 1;
    type.dtype = bucket->grad;
    if (bucket->division == DIVIDE_STATES)
        TRY(add_entry(plan, grad, &type, REGION_GRADS, bucket->grad_space, bucket->grad_offset + dtype_bytes(type.dtype, at)));
    if (!value->param) return OK;
    int64_t  *segment = plan->segments[plan->num_trained];
    PlanPiece updated = bucket->groups ? own(plan, &bucket->groups[run->group], at, type_numel(&type)) : share;
    plan->trained_numel += type_numel(&type);
    plan->shares[plan->num_trained] = share;
    segment[SEGMENT_OFFSET] = updated.at;
    segment[SEGMENT_NUMEL] = updated.numel;
    segment[SEGMENT_FIRST] = updated.first;
    segment[SEGMENT_DECAY] = value->param->decay;
    segment[SEGMENT_KEY] = (int64_t)philox_name_key(value->param->name);
    plan->trained_params[plan->num_trained++] = value->param;
    plan->entries[entry].trained = plan->num_trained;
    return OK;
}

/* Sets where a state begins for each parameter of a bucket, and how long it is. */
static void layout_state(Plan *plan, const Bucket *bucket, BucketState *state)
{
    enum { ROWS_ALIGN = 64 }; /* alignment, in elements, of each parameter's state */
    int64_t *at = arena_array(plan->arena, int64_t, bucket->count + 1), rows = 0;
    for (int i = 0; i < bucket->count; i++) {
        const int64_t *segment = plan->segments[bucket->first + i];
        int64_t        offset = segment[SEGMENT_OFFSET];
        CHECK(state->extent != STATE_BLOCKS || segment[SEGMENT_FIRST] % MOMENT_BLOCK == 0); /* find_buckets makes sure of it */
        at[i] = state->extent == STATE_ELEMENTS ? offset : state->extent == STATE_BLOCKS ? MOMENT_FIRST(offset, i) : rows;
        TensorType type = state_type(state, plan->trained_params[bucket->first + i]);
        if (segment[SEGMENT_NUMEL]) rows = layout_align(rows + type_numel(&type), ROWS_ALIGN);
    }
    state->at = at;
    state->numel = state->extent == STATE_ELEMENTS ? bucket->share_numel
                   : state->extent == STATE_BLOCKS ? MOMENT_FIRST(bucket->share_numel, bucket->count)
                   : rows                          ? rows
                                                   : ROWS_ALIGN; /* no parameter of this rank; but a value can't be empty */
}

/* Adds a flat value at a region's end; name NULL: adds nothing. */
static Status add_flat(Plan *plan, const char *name, DType dtype, int64_t numel, Region region, Space space)
{
    TensorType type = type_make(dtype, 1, numel);
    return name ? append_entry(plan, name, &type, region, space) : OK;
}

static int64_t first_read(const Value *value)
{
    const Node *reader = value_first_reader(value);
    int64_t     first = reader ? reader->order : INT64_MAX;
    for (const Value *member = value->first_member; member; member = member->next_member) {
        int64_t its = first_read(member);
        if (its < first) first = its;
    }
    return first;
}

static int by_reading(const void *a, const void *b)
{
    const Run *x = a, *y = b;
    return x->read != y->read ? (x->read < y->read ? -1 : 1) : x->index - y->index;
}

/* Lists the bucket's values in the order of the graph; with several ranks in the order of their first reads. Then a chunk consists of
 * neighbours: they are needed, and their gradients are ready, at about one time. */
static int list_runs(const CompileOptions *options, const Graph *graph, const Bucket *bucket, bool by_value, Run *runs)
{
    int count = 0;
    for (int i = 0; i < graph->num_values; i++) {
        const Value *value = graph->values[i];
        if (!layout_is_whole(value) || !is_trained(value)) continue;
        Bucket its = bucket_of(options, value, by_value);
        if (!is_same_bucket(&its, bucket)) continue;
        runs[count] = (Run){.value = value, .read = first_read(value), .index = count};
        count++;
    }
    if (options->world > 1) qsort(runs, (size_t)count, sizeof *runs, by_reading);
    return count;
}

/* Lists the bucket's parameters in the order of the graph, by index; they are laid out in the order of the runs. */
static const int *list_params(Arena *arena, const Run *runs, int count, int num_params)
{
    int *begin = arena_array(arena, int, count + 1), *num = arena_array(arena, int, count + 1),
        *listed = arena_array(arena, int, num_params + 1);
    int at = 0;
    for (int i = 0; i < count; i++) {
        begin[runs[i].index] = at;
        for (const Value *part = NULL; (part = layout_next_param(runs[i].value, part)); at++) num[runs[i].index]++;
    }
    for (int i = 0, next = 0; i < count; i++)
        for (int k = 0; k < num[i]; k++) listed[next++] = begin[i] + k;
    return listed;
}

/* Lays out the trained parameters of a bucket; the members of a packed parameter are adjacent. */
static Status layout_bucket(Plan *plan, const CompileOptions *options, const Graph *graph, bool by_value, Bucket *bucket)
{
    Run *runs = arena_array(plan->arena, Run, graph->num_params + 1);
    int  count = list_runs(options, graph, bucket, by_value, runs);
    bucket->first = plan->num_trained;
    bucket->weight_offset = plan->region_bytes[bucket->space][REGION_WEIGHTS];
    bucket->grad_offset = plan->region_bytes[bucket->grad_space][REGION_GRADS];
    bucket->chunks = arena_array(plan->arena, Chunk, count + 1);
    if ((bucket->rule->whole || bucket->by_value) && options->world > 1)
        place_whole_runs(plan->arena, options, bucket, runs, count);
    else
        place_runs(plan, options, bucket, runs, count);
    bucket->share_numel = bucket->numel / options->world;
    for (int i = count - 1; i >= 0; i--) bucket->chunks[runs[i].chunk].read = runs[i].read;
    for (int i = 0; i < count; i++) {
        const Value *value = runs[i].value;
        TRY(add_trained(plan, value, bucket, &runs[i], runs[i].at));
        for (const Value *part = NULL; (part = layout_next_param(value, part));)
            if (part != value) TRY(add_trained(plan, part, bucket, &runs[i], runs[i].at + part->offset));
    }
    bucket->count = plan->num_trained - bucket->first;
    bucket->listed = list_params(plan->arena, runs, count, bucket->count);
    TRY(add_flat(plan, bucket->weights, bucket->weight, bucket->numel, REGION_WEIGHTS, bucket->space));
    TRY(add_flat(plan, bucket->grads, bucket->grad, bucket->numel, REGION_GRADS, bucket->grad_space));
    if (options->world > 1) {
        TRY(add_flat(plan, bucket->weight_share, bucket->weight, bucket->share_numel, REGION_WEIGHTS, bucket->space));
        TRY(add_flat(plan, bucket->grad_share, bucket->grad, bucket->share_numel, REGION_GRADS, bucket->grad_space));
    }
    for (int k = 0; k < bucket->num_states; k++) layout_state(plan, bucket, &bucket->states[k]);
    return OK;
}

static const char *bucket_value(Plan *plan, const char *name, int index)
{
    return index ? arena_printf(plan->arena, "%s.%d", name, index + 1) : name;
}

static void name_values(Plan *plan, const CompileOptions *options, Bucket *bucket, int index)
{
    bool shares = options->world > 1;
    if (bucket->division < DIVIDE_WEIGHTS) bucket->weights = bucket_value(plan, "weights", index);
    if (bucket->division < DIVIDE_GRADS) bucket->grads = bucket_value(plan, "grads", index);
    bucket->weight_share = shares ? bucket_value(plan, "weights.share", index) : bucket->weights;
    bucket->grad_share = shares ? bucket_value(plan, "grads.share", index) : bucket->grads;
    optimizer_states(options, bucket);
    for (int k = 0; k < bucket->num_states; k++)
        bucket->states[k].value = bucket_value(plan, arena_printf(plan->arena, "%s.%s", bucket->rule->name, bucket->states[k].name), index);
}

/* Makes one bucket for each rule, pair of dtypes, division and space, in the order in which the graph has them. */
static void list_buckets(Plan *plan, const CompileOptions *options, const Graph *graph, bool by_value)
{
    enum {
        MAX_BUCKETS = DT_COUNT * 2 * OPTIMIZER_MAX_RULES * 3 * SPACE_COUNT
    }; /* 2: a gradient has its weight's dtype or fp32; 3: a bucket is divided, not divided, or by value */
    plan->buckets = arena_array(plan->arena, Bucket, MAX_BUCKETS);
    for (int i = 0; i < graph->num_values; i++) {
        int k = 0, index = plan->num_buckets;
        if (!layout_is_whole(graph->values[i]) || !is_trained(graph->values[i])) continue;
        Bucket bucket = bucket_of(options, graph->values[i], by_value);
        while (k < index && !is_same_bucket(&plan->buckets[k], &bucket)) k++;
        if (k < index) continue;
        name_values(plan, options, &bucket, index);
        plan->buckets[plan->num_buckets++] = bucket;
    }
}

/* Whether any rank's equal share of the bucket would begin within a block of moments. */
static bool is_cut_in_blocks(const Plan *plan, const CompileOptions *options, const Graph *graph, const Bucket *bucket)
{
    Bucket trial = *bucket;
    bool   found = false;
    if (!has_blocks(bucket->rule)) return false;
    Run *runs = arena_array(plan->arena, Run, graph->num_params + 1);
    int  count = list_runs(options, graph, bucket, false, runs);
    trial.chunks = arena_array(plan->arena, Chunk, count + 1);
    place_runs(plan, options, &trial, runs, count);
    for (int i = 0; i < count && !found; i++) {
        const Chunk *chunk = &trial.chunks[runs[i].chunk];
        found = cuts_blocks(runs[i].value, runs[i].at - chunk->first, chunk->numel, options->world);
    }
    return found;
}

/* Makes the buckets. Packed weights whose blocks of moments would be cut get buckets of their own. Returns whether any did. */
static bool find_buckets(Plan *plan, const CompileOptions *options, const Graph *graph)
{
    bool by_value = false;
    list_buckets(plan, options, graph, false);
    for (int i = 0; i < plan->num_buckets && options->world > 1 && !by_value; i++)
        by_value = is_cut_in_blocks(plan, options, graph, &plan->buckets[i]);
    if (!by_value) return false;
    plan->num_buckets = 0;
    list_buckets(plan, options, graph, true);
    return true;
}

/* Adds a frozen value, or a member that begins at the value's element `at`. divided: all elements of the value, of which each rank has an
 * equal share; NULL: the value isn't divided. */
static Status add_frozen(Plan *plan, const Value *part, const Chunk *divided, Space space, int64_t base, int64_t at)
{
    PlanPiece share = divided ? own(plan, divided, at, type_numel(&part->type)) : (PlanPiece){0};
    return add_weight(plan, part, space, base, at, divided ? &share : NULL);
}

static Status append_frozen(Plan *plan, const CompileOptions *options, const Value *value)
{
    const Chunk  all = {.numel = type_numel(&value->type)};
    const Chunk *divided = options->world > 1 && options->zero_level == DIVIDE_WEIGHTS && is_divided(options, value) ? &all : NULL;
    const Space  space = layout_space(options, value);
    int64_t     *end = &plan->region_bytes[space][REGION_WEIGHTS], base = *end;
    TRY(add_frozen(plan, value, divided, space, base, 0));
    for (const Value *member = value->param ? NULL : value->first_member; member; member = member->next_member)
        TRY(add_frozen(plan, member, divided, space, base, member->offset));
    *end = layout_align(base + dtype_bytes(value->type.dtype, divided ? all.numel / plan->world : all.numel), PLACE_ALIGN);
    return OK;
}

Status layout_params(Plan *plan, const CompileOptions *options, const Graph *graph)
{
    if (plan->params || !graph->num_params) return OK;
    plan->params = graph->params;
    plan->num_params = graph->num_params;
    plan->segments = arena_alloc(plan->arena, sizeof *plan->segments * (size_t)(graph->num_params + 1));
    plan->shares = arena_array(plan->arena, PlanPiece, graph->num_params + 1);
    plan->trained_params = arena_array(plan->arena, Param *, graph->num_params + 1);
    bool by_value = find_buckets(plan, options, graph);
    for (int i = 0; i < plan->num_buckets; i++) TRY(layout_bucket(plan, options, graph, by_value, &plan->buckets[i]));
    for (int i = 0; i < graph->num_values; i++)
        if (layout_is_whole(graph->values[i]) && !is_trained(graph->values[i])) TRY(append_frozen(plan, options, graph->values[i]));
    for (int i = 0; i < graph->num_params; i++) plan->total_numel += type_numel(&graph->params[i]->type);
    return OK;
}

const Chunk *layout_first_chunk(const Plan *plan, const Bucket **out_bucket)
{
    const Chunk *first = NULL;
    for (int b = 0; b < plan->num_buckets && plan->world > 1; b++) {
        const Bucket *bucket = &plan->buckets[b];
        for (int c = 0; bucket->weights && c < bucket->num_chunks; c++) {
            if (first && bucket->chunks[c].read >= first->read) continue;
            first = &bucket->chunks[c];
            *out_bucket = bucket;
        }
    }
    return first;
}

/* ---- other values ---- */

static const Region regions[VALUE_KIND_COUNT] = {
    [VALUE_INPUT] = REGION_INPUTS,    [VALUE_PARAM] = REGION_WEIGHTS, [VALUE_GRAD] = REGION_OPTIMIZER,
    [VALUE_STATE] = REGION_OPTIMIZER, [VALUE_CACHE] = REGION_CACHE,   [VALUE_CONST] = REGION_CONSTS,
};

/* Whether a value may have another size in each program: an input has the shape of a run, and a run of fewer rows uses the first rows of a
 * cache. The largest size counts. */
static bool may_grow(const Value *value)
{
    return value->kind == VALUE_INPUT || value->kind == VALUE_CACHE;
}

/* Places the values of a region anew, one after the other. */
static void repack(Plan *plan, Region region)
{
    for (int space = 0; space < SPACE_COUNT; space++) plan->region_bytes[space][region] = 0;
    for (int i = 0; i < plan->num_entries; i++) {
        Placement *place = &plan->entries[i].place;
        int64_t   *end = &plan->region_bytes[place->space][region];
        if (place->region != region) continue;
        place->offset = *end;
        *end = layout_align(place->offset + place->bytes, PLACE_ALIGN);
    }
}

Status layout_add(Plan *plan, const CompileOptions *options, const Graph *graph)
{
    bool has_grown = false;
    TRY(layout_params(plan, options, graph));
    for (int i = 0; i < graph->num_values; i++) {
        const Value     *value = graph->values[i];
        bool             once = value->producer && (value->producer->flags & NODE_ONCE);
        const PlanEntry *entry = plan_find(plan, value->name);
        if (value->kind == VALUE_ACTIVATION || value->kind == VALUE_STAGED || value->storage || (value->producer && !once)) continue;
        if (!entry) {
            TRY(append_entry(plan, value->name, &value->type, regions[value->kind], value->space));
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
