/* shard: what ranks that train one model have for one another. Every rank runs the same programs over rows of its own; gradients are summed
 * over the ranks, and each updates the parameters that are its share (layout.c).
 *
 * A bucket's division says what crosses when. Weights that are whole on each rank are gathered, chunk by chunk, by the first program of a
 * step, beside its forward pass; the chunk that is read first by the optimizer's, beside its updates (updates.c). Gradients that are whole
 * cross at the end of a step, beside the last part of the backward pass: links that carry something now and then never fall asleep, and
 * the power that they take is the arithmetic's (docs/multi_gpu.md). Where a rank keeps its share alone, a gradient is an activation, and is
 * added to the share in every micro-step. Weights of which a rank has its share alone are gathered at use (NODE_AT_USE); of trained ones
 * that products read in FP8, the codes that each rank made of its share at the beginning of the step.
 *
 * All this is on STREAM_COMM: what waits for it follows from the bytes that it writes. Collectives stand in the same order in the programs
 * of all ranks, since nothing but offsets and the optimizer's segments depends on the rank. */
#include "ops/ops.h"
#include "passes/layout.h"
#include "passes/pass.h"

#include <stdint.h>
#include <stdlib.h>

typedef struct Shard {
    const CompileOptions *options;
    const Plan           *plan;
    Graph                *graph;
    const ProgramSpec    *spec;
} Shard;

/* Of several ranks, a bucket's value that is whole on each or a rank's share. */
static Value *flat_value(Graph *graph, ValueKind kind, const char *name, DType dtype, int64_t numel)
{
    TensorType type = type_make(dtype, 1, numel);
    Value     *value = graph_find(graph, name);
    if (!value) value = graph_add_value(graph, kind, name, &type);
    value->layer = -1;
    return value;
}

/* Chunk c of a flat value, of which `divide` ranks have equal parts. */
static Value *chunk_of(Value *flat, Graph *graph, const Chunk *chunk, int c, int64_t divide)
{
    TensorType type = type_make(flat->type.dtype, 1, chunk->numel / divide);
    Value     *part = graph_add_value(graph, flat->kind, arena_printf(graph->arena, "%s.chunk%d", flat->name, c), &type);
    value_place_in(part, flat, chunk->first / divide);
    return part;
}

static Value *weights_of(const Shard *s, const Bucket *bucket)
{
    return flat_value(s->graph, VALUE_PARAM, bucket->weights, bucket->weight, bucket->numel);
}

static Value *weight_share(const Shard *s, const Bucket *bucket, int c)
{
    Value *share = flat_value(s->graph, VALUE_PARAM, bucket->weight_share, bucket->weight, bucket->share_numel);
    return chunk_of(share, s->graph, &bucket->chunks[c], c, s->plan->world);
}

static Value *grad_share(const Shard *s, const Bucket *bucket, int c)
{
    Value *share = flat_value(s->graph, VALUE_GRAD, bucket->grad_share, bucket->grad, bucket->share_numel);
    return chunk_of(share, s->graph, &bucket->chunks[c], c, s->plan->world);
}

static Status add_gather(const Shard *s, Value *share, const char *name, uint32_t flags, Value **out)
{
    RanksAttrs attrs = {.ranks = s->plan->world};
    Node      *node;
    TRY(graph_add_node(s->graph, &op_gather, &attrs, name, &share, 1, ~0u, &node));
    node->stream = STREAM_COMM;
    node->flags |= flags;
    *out = node->out[0];
    return OK;
}

/* The sum over the ranks of x is written or added, after the node `last`, to the bucket's share of chunk c. */
static Status add_reduce(const Shard *s, Value *x, const Bucket *bucket, int c, Node *last, bool accumulate, Node **out)
{
    RanksAttrs attrs = {.ranks = s->plan->world};
    Value     *share = grad_share(s, bucket, c), *in[] = {x, accumulate ? share : NULL};
    s->graph->cursor = last->next;
    TRY(graph_add_node(s->graph, &op_reduce_scatter, &attrs, share->name, in, 2, ~0u, out));
    (*out)->stream = STREAM_COMM;
    (*out)->flags |= NODE_BACKWARD;
    (*out)->layer = last->layer;
    if (!accumulate) value_place_in((*out)->out[0], share, 0);
    s->graph->cursor = NULL;
    return OK;
}

/* ---- where a value lies in its bucket ---- */

/* NULL: it isn't trained. */
static const Bucket *bucket_of(const Plan *plan, const Value *whole)
{
    const Param *param = whole->param;
    int          index;
    for (const Value *member = whole->first_member; member && !param; member = member->next_member) param = member->param;
    return param ? plan_bucket(plan, param, &index) : NULL;
}

static int64_t elements_in(DType dtype, int64_t bytes)
{
    int64_t block = dtype_info(dtype)->block;
    return bytes / dtype_bytes(dtype, block) * block;
}

/* The element of the bucket at which a value begins. */
static int64_t place_in_bucket(const Plan *plan, const Bucket *bucket, const Value *whole)
{
    int64_t at = elements_in(bucket->weight, plan_find(plan, whole->name)->place.offset - bucket->weight_offset);
    return bucket->division == DIVIDE_WEIGHTS ? at * plan->world : at; /* there it is a share that begins */
}

static int chunk_at(const Bucket *bucket, int64_t at)
{
    int low = 0, high = bucket->num_chunks;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (bucket->chunks[middle].first <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- whole on each rank ---- */

/* The value and its members become elements of the flat one. */
static void join(Value *whole, Value *flat, int64_t at)
{
    while (whole->first_member) value_place_in(whole->first_member, flat, at + whole->first_member->offset);
    value_place_in(whole, flat, at);
}

static Value *grad_value(const Shard *s, const Value *whole)
{
    return graph_find(s->graph, arena_printf(s->graph->arena, "grad.%s", whole->name));
}

static void join_bucket(const Shard *s, Value *whole, const Bucket *bucket, bool weights, bool grads)
{
    int64_t at = place_in_bucket(s->plan, bucket, whole);
    Value  *grad = grads && bucket->grads ? grad_value(s, whole) : NULL;
    if (grad) join(grad, flat_value(s->graph, VALUE_GRAD, bucket->grads, bucket->grad, bucket->numel), at);
    if (weights && bucket->weights) join(whole, weights_of(s, bucket), at);
}

typedef struct Gathering {
    const Bucket *bucket;
    int           chunk;
} Gathering;

static int by_reading(const void *a, const void *b)
{
    const Gathering *x = a, *y = b;
    int64_t          first = x->bucket->chunks[x->chunk].read, second = y->bucket->chunks[y->chunk].read;
    if (first != second) return first < second ? -1 : 1;
    return x->bucket != y->bucket ? (x->bucket < y->bucket ? -1 : 1) : x->chunk - y->chunk;
}

/* The chunks of all weights that are whole on each rank, in the order in which they are read. */
static int list_gathers(const Shard *s, Gathering **out)
{
    int count = 0, most = 0;
    for (int b = 0; b < s->plan->num_buckets; b++) most += s->plan->buckets[b].num_chunks;
    *out = arena_array(s->graph->arena, Gathering, most + 1);
    for (int b = 0; b < s->plan->num_buckets; b++) {
        const Bucket *bucket = &s->plan->buckets[b];
        for (int c = 0; bucket->weights && c < bucket->num_chunks; c++) (*out)[count++] = (Gathering){bucket, c};
    }
    qsort(*out, (size_t)count, sizeof **out, by_reading);
    return count;
}

/* Chunk after chunk, before anything else. Each launch that reads a weight waits for its chunk. is_there: what is read first. */
static Status gather_all(const Shard *s, bool is_there)
{
    Gathering    *list;
    int           count = list_gathers(s, &list);
    const Bucket *of_first = NULL;
    const Chunk  *first = is_there ? layout_first_chunk(s->plan, &of_first) : NULL;
    s->graph->cursor = s->graph->first;
    for (int i = 0; i < count; i++) {
        const Bucket *bucket = list[i].bucket;
        int           c = list[i].chunk;
        if (&bucket->chunks[c] == first) continue;
        Value *to = chunk_of(weights_of(s, bucket), s->graph, &bucket->chunks[c], c, 1), *made;
        TRY(add_gather(s, weight_share(s, bucket, c), to->name, 0, &made));
        value_place_in(made, to, 0);
    }
    s->graph->cursor = NULL;
    return OK;
}

/* By chunk: the last node that makes some of its gradients; NULL: none does. */
static Node **last_makers(const Shard *s, const Bucket *bucket)
{
    Node       **last = arena_array(s->graph->arena, Node *, bucket->num_chunks + 1);
    const Root  *roots = graph_roots(s->graph);
    const Value *flat = graph_find(s->graph, bucket->grads);
    for (Node *node = s->graph->first; node; node = node->next)
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k] && roots[node->out[k]->id].value == flat) last[chunk_at(bucket, roots[node->out[k]->id].offset)] = node;
    return last;
}

/* A chunk of gradients that crosses: `ready` makes the last of it, `after` is what it waits for. */
typedef struct Reduction {
    const Bucket *bucket;
    int           chunk;
    Node         *ready, *after;
} Reduction;

static int by_readiness(const void *a, const void *b)
{
    const Reduction *x = a, *y = b;
    if (x->ready != y->ready) return node_precedes(x->ready, y->ready) ? -1 : 1;
    return x->bucket != y->bucket ? (x->bucket < y->bucket ? -1 : 1) : x->chunk - y->chunk;
}

static int list_reductions(const Shard *s, Reduction **out)
{
    int count = 0, most = 0;
    for (int b = 0; b < s->plan->num_buckets; b++) most += s->plan->buckets[b].num_chunks;
    *out = arena_array(s->graph->arena, Reduction, most + 1);
    for (int b = 0; b < s->plan->num_buckets; b++) {
        const Bucket *bucket = &s->plan->buckets[b];
        Node        **last = bucket->grads && graph_find(s->graph, bucket->grads) ? last_makers(s, bucket) : NULL;
        for (int c = 0; last && c < bucket->num_chunks; c++)
            if (last[c]) (*out)[count++] = (Reduction){bucket, c, last[c], last[c]};
    }
    qsort(*out, (size_t)count, sizeof **out, by_readiness);
    return count;
}

static bool is_product(const Node *node)
{
    return node->op->cost && node->op->cost(node).matrix_unit;
}

/* Each chunk waits as long as it may: until what is left before the last one takes LEAD times as long as it and those after it need on the
 * links, since links and memory are shared with the arithmetic. It waits for a product, which no later pass removes. */
static void delay_reductions(const Shard *s, Reduction *list, int count)
{
    enum { LEAD = 3 };
    const DeviceFacts *facts = &s->plan->facts;
    double             left = 0, needed = 0; /* seconds */
    if (facts->peer_link <= 0 || count == 0) return;
    Node *node = list[count - 1].ready;
    for (int i = count - 2; i >= 0; i--) {
        const Bucket *bucket = list[i].bucket;
        int64_t       numel = bucket->chunks[list[i].chunk].numel, away = numel - numel / s->plan->world;
        needed += LEAD * (facts->peer_seconds + (double)dtype_bytes(bucket->grad, away) / facts->peer_link);
        for (; node != list[i].ready && (left < needed || !is_product(node)); node = node->prev) {
            Launch launch = {.node = node};
            left += launch_limit_seconds(facts, &launch, 1);
        }
        list[i].after = node;
    }
}

static Status reduce_chunks(const Shard *s)
{
    Reduction *list;
    int        count = list_reductions(s, &list);
    Node      *made = NULL;
    delay_reductions(s, list, count);
    for (int i = 0; i < count; i++) {
        const Reduction *r = &list[i];
        Value           *flat = graph_find(s->graph, r->bucket->grads);
        Value           *chunk = chunk_of(flat, s->graph, &r->bucket->chunks[r->chunk], r->chunk, 1);
        bool             is_next = made && r->after == list[i - 1].after;
        TRY(add_reduce(s, chunk, r->bucket, r->chunk, is_next ? made : r->after, false, &made));
        if (r->after != r->ready) node_add_after(s->graph, made, r->after);
    }
    return OK;
}

/* ---- gradients of which each rank has a share ---- */

/* A gradient that is an activation: the nodes that make it, and its last version. */
typedef struct Crossing {
    const Bucket *bucket;
    int           chunk;
    Node         *first, *last;
    Value        *made;
} Crossing;

/* A gradient begins with nothing, and is nobody's but this program's. */
static void begin_fresh(Node *node, Value *out, const Value *home)
{
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i] == home) node_set_input(node, i, NULL);
    if (out->sharing == STORAGE_HOME) value_leave_home(out);
}

/* of: by value id. Each version of a gradient gets its crossing; the memory that it would be made in isn't wanted. */
static void follow_gradients(const Shard *s, Crossing **of)
{
    const Root *roots = graph_roots(s->graph);
    int         num_values = s->graph->num_values;
    for (Node *node = s->graph->first; node; node = node->next)
        for (int k = 0; k < node->num_out; k++) {
            Value       *out = node->out[k];
            const Value *home = out ? roots[out->id].value : NULL;
            Crossing    *crossing = home ? of[home->id] : NULL;
            if (!crossing) continue;
            if (!crossing->first) begin_fresh(node, out, home);
            for (int i = 0; crossing->first && i < node->num_in; i++)
                if (node->in[i] == crossing->made) node_set_input(node, i, crossing->made); /* which is an activation: so is `out` */
            if (!crossing->first) crossing->first = node;
            crossing->last = node;
            crossing->made = out;
            of[out->id] = crossing;
        }
    for (int i = 0; i < num_values; i++)
        if (of[i] && !s->graph->values[i]->producer) value_drop(s->graph->values[i]);
}

/* Gradients of two layers are there at a time: those of a layer wait until those of the layer before the last have crossed. */
static Status cross_gradients(const Shard *s, Crossing *const *of)
{
    Node *newest = NULL, *before = NULL, *bound = NULL; /* the last crossing so far, of the last layer, and of the one before */
    int   layer = INT32_MIN;
    for (Node *node = s->graph->first, *next; node; node = next) {
        next = node->next;
        for (int k = 0; k < node->num_out; k++) {
            const Crossing *crossing = node->out[k] ? of[node->out[k]->id] : NULL;
            if (!crossing) continue;
            if (crossing->first == node && node->layer != layer) {
                bound = before;
                before = newest;
                layer = node->layer;
            }
            if (crossing->first == node && bound) node_add_after(s->graph, node, bound);
            if (crossing->last == node && crossing->made == node->out[k])
                TRY(add_reduce(s, crossing->made, crossing->bucket, crossing->chunk, node, s->spec->adds, &newest));
        }
    }
    return OK;
}

/* By value id: the crossings of the values that gradients would be made in; NULL: all are whole. */
static Crossing **find_crossings(const Shard *s)
{
    int        num_values = s->graph->num_values;
    bool       any = false;
    Crossing **of = arena_array(s->graph->arena, Crossing *, num_values + 1);
    for (int i = 0; i < num_values; i++) {
        const Value  *whole = s->graph->values[i];
        const Bucket *bucket = layout_is_whole(whole) ? bucket_of(s->plan, whole) : NULL;
        Value        *home = bucket && !bucket->grads ? grad_value(s, whole) : NULL;
        if (!home) continue;
        of[home->id] = arena_new(s->graph->arena, Crossing);
        *of[home->id] = (Crossing){.bucket = bucket, .chunk = chunk_at(bucket, place_in_bucket(s->plan, bucket, whole))};
        any = true;
    }
    return any ? of : NULL;
}

static Status reduce_gradients(const Shard *s)
{
    Crossing **of = find_crossings(s);
    if (!of) return OK;
    follow_gradients(s, of);
    return cross_gradients(s, of);
}

/* calibrate: what the first scales are made from is the largest of all ranks, and gradients that would cross are made for nobody. */
static Status shard_calibrate(const Shard *s)
{
    AllReduceAttrs attrs = {.ranks = s->plan->world, .max = true};
    Value         *now = graph_find(s->graph, PRECISION_NOW);
    Node          *node;
    Crossing     **of = find_crossings(s);
    if (of) follow_gradients(s, of);
    remove_dead_nodes(s->graph);
    if (!now) return OK;
    TRY(graph_add_node(s->graph, &op_all_reduce, &attrs, PRECISION_NOW, &now, 1, ~0u, &node));
    node->stream = STREAM_COMM;
    node->flags |= NODE_BACKWARD;
    return OK;
}

/* ---- weights of which each rank has a share ---- */

static Node *first_reader(const Value *value)
{
    Node *first = NULL;
    for (const Use *use = value->first_use; use; use = use->next)
        if (!first || node_precedes(use->node, first)) first = use->node;
    return first;
}

static Status add_at_use(const Shard *s, const OpDef *op, const void *attrs, Value **x)
{
    Node *node;
    TRY(graph_add_node(s->graph, op, attrs, (*x)->name, x, 1, ~0u, &node));
    node->flags |= NODE_AT_USE;
    *x = node->out[0];
    return OK;
}

/* What is gathered from `share`, of this type, right before a node that reads it; turned: its transpose, of codes. */
static Status gather_before(const Shard *s, Node *reader, Value *share, const char *name, const TensorType *type, bool turned, Value **out)
{
    ReshapeAttrs dims = {.ndim = type->ndim, .d0 = type->dim[0], .d1 = type->dim[1], .d2 = type->dim[2], .d3 = type->dim[3]};
    s->graph->cursor = reader;
    s->graph->layer = share->layer;
    TRY(add_gather(s, share, name, NODE_AT_USE, out));
    TRY(add_at_use(s, &op_reshape, &dims, out));
    if (turned) TRY(add_at_use(s, &op_fp8_turn, NULL, out));
    s->graph->cursor = NULL;
    s->graph->layer = -1;
    return OK;
}

/* What reads the value reads what is gathered from `share` in its place, at use. */
static Status gather_at_use(const Shard *s, Value *whole, Value *share)
{
    Node  *reader = first_reader(whole);
    Value *made;
    while (whole->first_member) {
        FAIL_IF(whole->first_member->num_uses, ERR_INTERNAL, "shard: %s is read by itself, and %s is divided", whole->first_member->name,
                whole->name);
        value_drop(whole->first_member);
    }
    if (reader) {
        TRY(gather_before(s, reader, share, whole->name, &whole->type, false, &made));
        graph_replace_uses(s->graph, whole, made, NULL);
    }
    value_drop(whole);
    return OK;
}

/* This rank's share of a frozen value, which the plan has under the value's name; NULL: it is whole. */
static Value *frozen_share(const Shard *s, Value *whole)
{
    const PlanEntry *entry = plan_find(s->plan, whole->name);
    if (!entry || type_equal(&entry->type, &whole->type)) return NULL;
    graph_rename(s->graph, whole, arena_printf(s->graph->arena, "%s.whole", whole->name));
    Value *share = graph_add_value(s->graph, VALUE_PARAM, entry->name, &entry->type);
    return share;
}

/* The share that this rank has of a divided weight; NULL: it isn't one. */
static Value *divided_share(const Shard *s, const Value *whole)
{
    const Bucket *bucket = layout_is_whole(whole) ? bucket_of(s->plan, whole) : NULL;
    if (!bucket || bucket->weights) return NULL;
    Value *share = weight_share(s, bucket, chunk_at(bucket, place_in_bucket(s->plan, bucket, whole)));
    share->layer = whole->layer;
    return share;
}

static Status gather_divided(const Shard *s)
{
    for (int i = 0, count = s->graph->num_values; i < count; i++) {
        Value *whole = s->graph->values[i], *share = divided_share(s, whole);
        if (!share && layout_is_whole(whole) && !bucket_of(s->plan, whole)) share = frozen_share(s, whole);
        if (share) share->layer = whole->layer;
        if (share) TRY(gather_at_use(s, whole, share));
    }
    return OK;
}

/* ---- codes of weights of which each rank has a share ---- */

/* The node that makes codes of the weight for the step; NULL: an earlier program has made them. */
static Node *quantiser_of(const Value *weight)
{
    for (const Use *use = weight->first_use; use; use = use->next)
        if (use->node && use->node->op == &op_fp8_quantise) return use->node;
    return NULL;
}

/* Codes that wait on the host leave as soon as they are made: there are those of two weights on the device at a time. */
typedef struct Quantising {
    Node *begin; /* codes are made before this node */
    Node *sent[2];
    int   count;
} Quantising;

static Status send_codes(const Shard *s, Quantising *q, Node *made, Value *home, Value **out)
{
    ReshapeAttrs flat = {.ndim = 1, .d0 = type_numel(&home->type)};
    Node       **sent = &q->sent[q->count++ % 2], *node;
    if (*sent) node_add_after(s->graph, made, *sent);
    TRY(graph_add_node(s->graph, &op_reshape, &flat, home->name, &made->out[0], 1, ~0u, &node));
    TRY(graph_add_node(s->graph, &op_copy, NULL, home->name, &node->out[0], 1, ~0u, sent));
    (*sent)->stream = STREAM_COPY_OUT;
    value_place_in((*sent)->out[0], home, 0);
    *out = (*sent)->out[0];
    return OK;
}

/* Before anything is gathered, this rank quantises its share in place of the whole. *codes becomes what is to be read. */
static Status quantise_share(const Shard *s, Quantising *q, Node *old, Value *share, Value **codes)
{
    int64_t    numel = type_numel(&share->type);
    TensorType rows = type_make(share->type.dtype, 2, numel / MOMENT_BLOCK, (int64_t)MOMENT_BLOCK);
    Value     *x = graph_add_value(s->graph, VALUE_PARAM, share->name, &rows), *in[3];
    Value     *home = graph_add_value(s->graph, VALUE_PARAM, (*codes)->name, &(*codes)->type);
    Node      *node;
    value_place_in(x, value_root(share, NULL), share->offset);
    value_place_in(home, *codes, 0);
    x->layer = share->layer;
    for (int i = 0; i < 3; i++) in[i] = i ? old->in[i] : x;
    s->graph->cursor = q->begin;
    s->graph->layer = share->layer;
    TRY(graph_add_node(s->graph, &op_fp8_quantise, old->attrs, (*codes)->name, in, 3, in[2] ? 5u : 1u, &node));
    if (in[2]) graph_replace_uses(s->graph, old->out[2], node->out[2], NULL);
    if (layout_space(s->options, *codes) == SPACE_HOST)
        TRY(send_codes(s, q, node, home, codes));
    else
        value_place_in(node->out[0], home, 0);
    s->graph->cursor = NULL;
    s->graph->layer = -1;
    return OK;
}

/* The codes that are read as `read`, or turned, are gathered from the shares. */
static Status gather_codes(const Shard *s, Value *read, Value *share, const TensorType *type, bool turned)
{
    Node  *reader = read ? first_reader(read) : NULL;
    Value *made;
    if (!reader) return OK;
    TRY(gather_before(s, reader, share, share->name, type, turned, &made));
    graph_replace_uses(s->graph, read, made, NULL);
    return OK;
}

/* One scale is of the whole weight, so that codes of a share are a share of the codes. Each rank has the largest magnitude of its share
 * only: the optimizer's program makes that of all. */
static Status divide_codes(const Shard *s, Quantising *q, ScaledTensor *scaled)
{
    Value *weight = graph_find(s->graph, scaled->name), *share = weight ? divided_share(s, weight) : NULL;
    Value *whole[] = {scaled->codes ? graph_find(s->graph, scaled->codes) : NULL,
                      scaled->transposed ? graph_find(s->graph, scaled->transposed) : NULL};
    TensorType type, part;
    if (!share || (!whole[0] && !whole[1])) return OK;
    type = weight->type;
    type.dtype = scaled->dtype;
    part = type_make(scaled->dtype, 1, type_numel(&share->type));
    if (!scaled->codes) scaled->codes = arena_printf(s->plan->arena, "fp8.codes.%s", weight->name);
    if (whole[0]) graph_rename(s->graph, whole[0], arena_printf(s->graph->arena, "%s.whole", scaled->codes));
    Value *codes = graph_add_value(s->graph, VALUE_PARAM, scaled->codes, &part);
    codes->layer = weight->layer;
    Node *quantiser = quantiser_of(weight);
    if (quantiser) TRY(quantise_share(s, q, quantiser, share, &codes));
    for (int k = 0; k < 2; k++) TRY(gather_codes(s, quantiser ? quantiser->out[k] : whole[k], codes, &type, k == 1));
    if (quantiser == q->begin && quantiser) q->begin = quantiser->next;
    if (quantiser) graph_remove_node(s->graph, quantiser);
    for (int k = 0; k < 2; k++)
        if (whole[k]) value_drop(whole[k]);
    return OK;
}

/* ---- the programs ---- */

/* The program that only gathers. */
static Status make_gather(PassContext *context, Graph **out_graph)
{
    Shard s = {.options = context->options, .plan = context->plan};
    s.graph = graph_create(context->arena, context->program->name, op_table, OP_COUNT);
    *out_graph = s.graph;
    return gather_all(&s, false);
}

static Status shard_micro(const Shard *s)
{
    bool begins = !s->spec->adds, ends = s->spec->ends;
    int  num_values = s->graph->num_values;
    TRY(reduce_gradients(s));
    for (int i = 0; i < num_values; i++) {
        Value        *whole = s->graph->values[i];
        const Bucket *bucket = layout_is_whole(whole) ? bucket_of(s->plan, whole) : NULL;
        if (bucket && (bucket->weights || bucket->grads)) join_bucket(s, whole, bucket, begins, ends);
    }
    if (ends) TRY(reduce_chunks(s));
    return begins ? gather_all(s, true) : OK;
}

Status pass_shard(PassContext *context, Graph **graph)
{
    const ProgramSpec *spec = &context->program->spec;
    if (context->options->world == 1) return OK;
    if (spec->entry->source == ENTRY_OF_SHARES) return make_gather(context, graph);
    Shard s = {.options = context->options, .plan = context->plan, .graph = *graph, .spec = spec};
    TRY(layout_params(context->plan, context->options, *graph));
    if (entry_makes_steps(spec->entry)) TRY(shard_micro(&s));
    if (spec->entry->measures) TRY(shard_calibrate(&s));
    Quantising q = {.begin = (*graph)->first};
    for (int i = 0; i < context->plan->num_scaled; i++) TRY(divide_codes(&s, &q, &context->plan->scaled[i]));
    TRY(gather_divided(&s));
    (*graph)->cursor = NULL;
    (*graph)->layer = -1;
    return OK;
}
