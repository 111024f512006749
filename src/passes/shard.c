/* shard: several ranks train one model. Every rank runs the same programs over its own rows. Gradients are summed over the ranks, and each
 * rank updates its share of the parameters (layout.c).
 *
 * A bucket's division says what crosses between ranks, and when. Weights that every rank holds whole are gathered chunk by chunk by a
 * step's first program, beside its forward pass. Only the chunk that is read first is gathered by the optimizer's program, beside its
 * updates (updates.c). Gradients that every rank holds whole cross at the end of a step, beside the last part of the backward pass: links
 * that are used now and then never sleep, and take power from the arithmetic (docs/multi_gpu.md). If a rank keeps only its share of a
 * gradient, the gradient is an activation, which every micro-step adds to the share. If a rank keeps only its share of a weight, the weight
 * is gathered at use (NODE_AT_USE). If such a weight is trained and products read it in FP8, its codes are gathered instead, which each
 * rank makes from its share at the beginning of the step.
 *
 * All transfers are on STREAM_COMM. Waits for them follow from the bytes that they write. Collectives have the same order in the programs
 * of all ranks, since only offsets and the optimizer's segments depend on the rank. */
#include "ops/ops.h"
#include "passes/layout.h"
#include "passes/pass.h"
#include "passes/travel.h"

#include <stdlib.h>

typedef struct Shard {
    const CompileOptions *options;
    const Plan           *plan;
    Graph                *graph;
    const ProgramSpec    *spec;
} Shard;

/* The elements of chunk c in a flat value. divide: 1 if the flat value holds all elements of chunks; the number of ranks if it holds this
 * rank's shares. */
static Value *chunk_of(const Shard *s, Value *flat, const Chunk *chunk, int c, int64_t divide)
{
    const char *name = arena_printf(s->graph->arena, "%s.chunk%d", flat->name, c);
    return flat_part(s->graph, flat, name, chunk->first / divide, chunk->numel / divide);
}

static Value *weights_of(const Shard *s, const Bucket *bucket)
{
    return flat_value(s->graph, VALUE_PARAM, bucket->weights, bucket->weight, bucket->numel);
}

/* This rank's share of chunk c, of the weights (VALUE_PARAM) or of the gradients (VALUE_GRAD). */
static Value *share_of(const Shard *s, const Bucket *bucket, ValueKind kind, int c)
{
    bool   grads = kind == VALUE_GRAD;
    Value *share = flat_value(s->graph, kind, grads ? bucket->grad_share : bucket->weight_share, grads ? bucket->grad : bucket->weight,
                              bucket->share_numel);
    return chunk_of(s, share, &bucket->chunks[c], c, s->plan->world);
}

/* A chunk of weights or gradients that crosses between ranks. */
typedef struct Crossing {
    const Bucket *bucket;
    int           chunk;
    Node         *ready, *after; /* for gradients. ready: the node that makes the chunk's last gradient; after: the node that the transfer
                                    waits for */
    int64_t order;               /* Node.order of the chunk's first reader, or of `ready` */
} Crossing;

/* Adds, after node `last`, a node that sums x over the ranks. This rank's part of the sum becomes its share of the chunk or, with
 * `accumulate`, is added to the share. */
static Status add_reduce(const Shard *s, Value *x, const Crossing *to, Node *last, bool accumulate, Node **out)
{
    RanksAttrs attrs = {.ranks = s->plan->world};
    Value     *share = share_of(s, to->bucket, VALUE_GRAD, to->chunk), *in[] = {x, accumulate ? share : NULL};
    s->graph->cursor = last->next;
    TRY(graph_add_node(s->graph, &op_reduce_scatter, &attrs, share->name, in, 2, ~0u, out));
    (*out)->stream = STREAM_COMM;
    (*out)->flags |= NODE_BACKWARD;
    (*out)->layer = last->layer;
    if (!accumulate) value_place_in((*out)->out[0], share, 0);
    return OK;
}

/* ---- where a value lies in its bucket ---- */

/* The value's bucket; NULL: it isn't trained, or has no memory of its own. */
static const Bucket *bucket_of(const Plan *plan, const Value *whole)
{
    const Param *param = layout_is_whole(whole) ? layout_first_param(whole) : NULL;
    int          index;
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
    return bucket->division == DIVIDE_WEIGHTS ? at * plan->world : at; /* the plan's entry is only a share */
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

/* ---- values that are whole on each rank ---- */

/* Makes the value and its members parts of the flat value, from its element `at` on. */
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

/* By chunk: the last node that makes any of its gradients; NULL: none does. */
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

static int by_order(const void *a, const void *b)
{
    const Crossing *x = a, *y = b;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return x->bucket != y->bucket ? (x->bucket < y->bucket ? -1 : 1) : x->chunk - y->chunk;
}

/* Lists the chunks that are whole on each rank: of weights, in the order of their first reads; or of gradients, in the order in which they
 * are ready. */
static int list_chunks(const Shard *s, bool grads, Crossing **out)
{
    int count = 0, most = 0;
    for (int b = 0; b < s->plan->num_buckets; b++) most += s->plan->buckets[b].num_chunks;
    *out = arena_array(s->graph->arena, Crossing, most + 1);
    for (int b = 0; b < s->plan->num_buckets; b++) {
        const Bucket *bucket = &s->plan->buckets[b];
        if (!(grads ? bucket->grads : bucket->weights)) continue;
        Node **last = grads ? last_makers(s, bucket) : NULL;
        for (int c = 0; c < bucket->num_chunks; c++) {
            if (grads && !last[c]) continue;
            (*out)[count++] =
                grads ? (Crossing){bucket, c, last[c], last[c], last[c]->order} : (Crossing){bucket, c, .order = bucket->chunks[c].read};
        }
    }
    qsort(*out, (size_t)count, sizeof **out, by_order);
    return count;
}

/* Gathers chunk after chunk, before anything else. Each launch that reads a weight waits for its chunk. is_there: the chunk that is read
 * first is gathered already. */
static Status gather_all(const Shard *s, bool is_there)
{
    Crossing     *list;
    int           count = list_chunks(s, false, &list);
    const Bucket *of_first = NULL;
    const Chunk  *first = is_there ? layout_first_chunk(s->plan, &of_first) : NULL;
    s->graph->cursor = s->graph->first;
    for (int i = 0; i < count; i++) {
        const Bucket *bucket = list[i].bucket;
        int           c = list[i].chunk;
        Node         *node;
        if (&bucket->chunks[c] == first) continue;
        Value *to = chunk_of(s, weights_of(s, bucket), &bucket->chunks[c], c, 1);
        TRY(add_collective(s->graph, &op_gather, s->plan->world, to->name, share_of(s, bucket, VALUE_PARAM, c), to, &node));
    }
    s->graph->cursor = NULL;
    return OK;
}

static bool is_product(const Node *node)
{
    return node->op->cost && node->op->cost(node).matrix_unit;
}

/* Delays each chunk but the last as long as possible, since links and arithmetic share memory. `needed`: LEAD times the seconds that links
 * take for this chunk to the last but one. `left`: seconds of work until the last chunk is ready. The chunk starts after the last product
 * at which `left` is at least `needed`; no later pass removes products. */
static void delay_reductions(const Shard *s, Crossing *list, int count)
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
    Crossing *list;
    int       count = list_chunks(s, true, &list);
    Node     *made = NULL;
    delay_reductions(s, list, count);
    for (int i = 0; i < count; i++) {
        const Crossing *r = &list[i];
        Value          *flat = graph_find(s->graph, r->bucket->grads);
        Value          *chunk = chunk_of(s, flat, &r->bucket->chunks[r->chunk], r->chunk, 1);
        bool            is_next = made && r->after == list[i - 1].after;
        TRY(add_reduce(s, chunk, r, is_next ? made : r->after, false, &made));
        if (r->after != r->ready) node_add_after(s->graph, made, r->after);
    }
    return OK;
}

/* ---- gradients of which each rank has a share ---- */

static Status reduce_gradient(const void *context, const Leaver *gradient, Value *made, Node **out)
{
    const Shard *s = context;
    return add_reduce(s, made, gradient->own, gradient->last, s->spec->adds, out);
}

/* Turns gradients of which each rank keeps only a share into activations. crosses: the sums of these gradients over the ranks are added to
 * the shares; else nobody reads the gradients. */
static Status divide_gradients(const Shard *s, bool crosses)
{
    int     num_values = s->graph->num_values;
    bool    any = false;
    Leaver *leavers = arena_array(s->graph->arena, Leaver, num_values + 1), **of = arena_array(s->graph->arena, Leaver *, num_values + 1);
    for (int i = 0; i < num_values; i++) {
        const Value  *whole = s->graph->values[i];
        const Bucket *bucket = bucket_of(s->plan, whole);
        Value        *home = bucket && !bucket->grads ? grad_value(s, whole) : NULL;
        if (!home) continue;
        Crossing *crossing = arena_new(s->graph->arena, Crossing);
        *crossing = (Crossing){.bucket = bucket, .chunk = chunk_at(bucket, place_in_bucket(s->plan, bucket, whole))};
        leavers[i] = (Leaver){.home = home, .own = crossing};
        of[home->id] = &leavers[i];
        any = true;
    }
    if (!any) return OK;
    TRY(gradients_leave(s->graph, &(Leave){.of = of, .send = crosses ? reduce_gradient : NULL, .context = s}));
    for (int i = 0; i < num_values; i++)
        if (of[i] && !s->graph->values[i]->producer) value_drop(s->graph->values[i]);
    return OK;
}

/* calibrate: the first scales are made from the largest magnitudes over all ranks. Gradients that would cross are dropped. */
static Status shard_calibrate(const Shard *s)
{
    Value *now = graph_find(s->graph, PRECISION_NOW);
    Node  *node;
    TRY(divide_gradients(s, false));
    remove_dead_nodes(s->graph);
    if (!now) return OK;
    TRY(add_largest(s->graph, s->plan->world, PRECISION_NOW, &now, &node));
    node->flags |= NODE_BACKWARD;
    return OK;
}

/* ---- weights of which each rank has a share ---- */

/* Adds a gather of `share` right before the first reader of `whole`; all readers read its result instead, in the dims of `type`. turned:
 * `whole` is the transpose of codes of these dims. */
static Status gather_at_use(const Shard *s, Value *whole, Value *share, const char *name, const TensorType *type, bool turned)
{
    Node *reader = whole ? value_first_reader(whole) : NULL, *node;
    if (!reader) return OK;
    s->graph->cursor = reader;
    s->graph->layer = share->layer;
    TRY(add_collective(s->graph, &op_gather, s->plan->world, name, share, NULL, &node));
    node->flags |= NODE_AT_USE;
    TRY(pass_reshape(s->graph, node->out[0]->name, node->out[0], type, &node));
    node->flags |= NODE_AT_USE;
    if (turned) TRY(graph_add_node(s->graph, &op_fp8_turn, NULL, node->out[0]->name, &node->out[0], 1, ~0u, &node));
    node->flags |= NODE_AT_USE;
    graph_replace_uses(s->graph, whole, node->out[0], NULL);
    pass_work_nowhere(s->graph);
    return OK;
}

/* This rank's share of a frozen value; NULL: the value isn't divided. The plan has the share under the value's name. */
static Value *frozen_share(const Shard *s, Value *whole)
{
    const PlanEntry *entry = plan_find(s->plan, whole->name);
    if (!entry || type_equal(&entry->type, &whole->type)) return NULL;
    graph_rename(s->graph, whole, arena_printf(s->graph->arena, "%s.whole", whole->name));
    Value *share = graph_add_value(s->graph, VALUE_PARAM, entry->name, &entry->type);
    share->layer = whole->layer;
    return share;
}

/* This rank's share of a divided weight; NULL: it isn't divided. */
static Value *divided_share(const Shard *s, const Value *whole)
{
    const Bucket *bucket = bucket_of(s->plan, whole);
    if (!bucket || bucket->weights) return NULL;
    Value *share = share_of(s, bucket, VALUE_PARAM, chunk_at(bucket, place_in_bucket(s->plan, bucket, whole)));
    share->layer = whole->layer;
    return share;
}

/* Drops the whole form of a value, if only this rank's share is kept. Nothing may read its members by themselves. */
static Status drop_whole(Value *whole)
{
    while (whole->first_member) {
        FAIL_IF(whole->first_member->num_uses, ERR_INTERNAL, "shard: %s is read by itself, and %s is divided", whole->first_member->name,
                whole->name);
        value_drop(whole->first_member);
    }
    value_drop(whole);
    return OK;
}

static Status gather_divided(const Shard *s)
{
    for (int i = 0, count = s->graph->num_values; i < count; i++) {
        Value *whole = s->graph->values[i], *share = divided_share(s, whole);
        if (!share && layout_is_whole(whole) && !bucket_of(s->plan, whole)) share = frozen_share(s, whole);
        if (!share) continue;
        TRY(gather_at_use(s, whole, share, whole->name, &whole->type, false));
        TRY(drop_whole(whole));
    }
    return OK;
}

/* ---- codes of weights of which each rank has a share ---- */

/* The node that makes the weight's codes for the step; NULL: an earlier program made them. */
static Node *quantiser_of(const Value *weight)
{
    for (const Use *use = weight->first_use; use; use = use->next)
        if (use->node && use->node->op == &op_fp8_quantise) return use->node;
    return NULL;
}

/* Codes that are kept on the host are sent there as soon as they are made: the device holds codes of two weights at a time. */
typedef struct Quantising {
    Node *begin; /* codes are made before this node */
    Node *sent[2];
    int   count;
} Quantising;

static Status send_codes(const Shard *s, Quantising *q, Node *made, Value *home, Value **out)
{
    Node **sent = &q->sent[q->count++ % 2], *node;
    if (*sent) node_add_after(s->graph, made, *sent);
    TRY(pass_reshape(s->graph, home->name, made->out[0], &home->type, &node));
    TRY(add_copy(s->graph, STREAM_COPY_OUT, home->name, node->out[0], home, sent));
    *out = (*sent)->out[0];
    return OK;
}

/* Makes this rank quantise its share instead of the whole weight, before anything is gathered. *codes becomes the value to be read. */
static Status quantise_share(const Shard *s, Quantising *q, Node *old, Value *share, Value **codes)
{
    int64_t    numel = type_numel(&share->type);
    TensorType rows = type_make(share->type.dtype, 2, numel / MOMENT_BLOCK, (int64_t)MOMENT_BLOCK);
    Value     *x = flat_tensor(s->graph, value_root(share, NULL), share->name, share->offset, &rows), *in[3];
    Value     *home = flat_part(s->graph, *codes, (*codes)->name, 0, type_numel(&(*codes)->type));
    Node      *node;
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
    pass_work_nowhere(s->graph);
    return OK;
}

/* Divides a weight's codes as the weight is divided. The whole weight has one scale, so codes of a share are a share of the codes. Each
 * rank records the largest magnitude of its share only; the optimizer's program takes the largest of all. */
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
    for (int k = 0; k < 2; k++) TRY(gather_at_use(s, quantiser ? quantiser->out[k] : whole[k], codes, codes->name, &type, k == 1));
    if (quantiser == q->begin && quantiser) q->begin = quantiser->next;
    if (quantiser) graph_remove_node(s->graph, quantiser);
    for (int k = 0; k < 2; k++)
        if (whole[k]) value_drop(whole[k]);
    return OK;
}

/* ---- the programs ---- */

/* Makes the program that only gathers. */
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
    TRY(divide_gradients(s, true));
    for (int i = 0; i < num_values; i++) {
        Value        *whole = s->graph->values[i];
        const Bucket *bucket = bucket_of(s->plan, whole);
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
    return gather_divided(&s);
}
