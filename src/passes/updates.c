/* The updates of all buckets. A rule updates a bucket at once, or a whole parameter at a time. A bucket in host memory is updated a piece
 * at a time: a piece is copied to the device, updated there and copied back, while the next one is on its way. Each element is updated as
 * in a bucket without pieces.
 *
 * A piece begins where a block of 8-bit moments begins, at a multiple of MOMENT_BLOCK elements. So states with one value a block are cut
 * where the elements are cut.
 *
 * If a rank has only shares of values that are updated whole, it receives one value of each group as a whole for the update (all_to_all),
 * beside the update of the group before.
 *
 * With several ranks the weights that the next step reads first are gathered as soon as they are updated. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/layout.h"
#include "passes/optimizers.h"
#include "passes/travel.h"

#include <string.h>

enum { MAX_FLAT = 1 + BUCKET_MAX_STATES /* weights, states */ };

/* A group of values. This rank has a share of each, and updates one of them. */
typedef struct Exchange {
    Value  *flat[2];  /* weights and gradients of the bucket */
    Value  *whole[2]; /* weights and gradients of the value that this rank updates */
    int64_t at;       /* element of `flat` where the group begins */
    Node   *sent;
} Exchange;

/* Elements [begin, end) of a bucket, which belong to its parameters [first, first + count). */
typedef struct Piece {
    Update  update;
    int     first, count;
    int64_t begin, end;
    int     exchange;         /* index of the exchange that its weights and gradients come from; -1: from the bucket */
    Value  *staged[MAX_FLAT]; /* copies on the device, which are updated */
    int     num_staged;
    Node   *sent; /* the last copy back to the host */
} Piece;

typedef struct Updates {
    const Update *shared;
    const Bucket *bucket;                                     /* the bucket that pieces are made of now */
    Value        *weights, *grads, *state[BUCKET_MAX_STATES]; /* flat values of the bucket; weights and grads may be a group's */
    int64_t       origin;                                     /* the bucket's element at which weights and gradients begin */
    int           exchange;                                   /* index of the exchange that weights and grads come from; -1: from the
                                                                 bucket */
    Piece        *pieces;
    int           num_pieces, cap_pieces;
    Exchange     *exchanges;
    int           num_exchanges;
    const Chunk  *first; /* the chunk that is gathered as soon as it is updated (layout_first_chunk); NULL: none */
    const Bucket *of_first;
    int gather_before; /* index of the piece before which `first` is gathered: the one after the last piece with elements of `first` */
} Updates;

/* ---- a piece's parts of flat values ---- */

static const Param *param_of(const Piece *piece)
{
    return piece->update.plan->trained_params[piece->update.bucket->first + piece->first];
}

/* A part of a flat value. With one rank, the flat value itself if the part is all of it. With several ranks the part is always a new value,
 * since a gather reads the flat one. */
static Value *part_of(const Piece *piece, Value *flat, int64_t at, const TensorType *dims)
{
    const Update *u = &piece->update;
    if (u->plan->world == 1 && type_same_dims(dims, &flat->type)) return flat;
    return flat_tensor(u->graph, flat, arena_printf(u->graph->arena, "%s.%s", flat->name, param_of(piece)->name), at, dims);
}

static TensorType elements_type(const Piece *piece)
{
    return piece->update.bucket->rule->whole ? param_of(piece)->type : type_make(DT_F32, 1, piece->end - piece->begin);
}

static Value *state_of(const Piece *piece, int k, Value *flat)
{
    const BucketState *state = &piece->update.bucket->states[k];
    TensorType         rows = state_type(state, param_of(piece)), elements = elements_type(piece);
    TensorType         blocks = type_make(DT_F32, 1, MOMENT_FIRST(piece->end - piece->begin, piece->count));
    if (state->extent == STATE_BLOCKS) return part_of(piece, flat, MOMENT_FIRST(piece->begin, piece->first), &blocks);
    if (state->extent == STATE_ROWS) return part_of(piece, flat, state->at[piece->first], &rows);
    return part_of(piece, flat, piece->begin, &elements);
}

/* Cuts the segments of the piece's parameters to the piece. Their offsets then count from the piece's beginning. */
static void cut_segments(Piece *piece)
{
    Update *u = &piece->update;
    int64_t(*rows)[SEGMENT_COLUMNS] = arena_alloc(u->graph->arena, sizeof *rows * (size_t)piece->count);
    memcpy(rows, u->plan->segments + u->bucket->first + piece->first, sizeof *rows * (size_t)piece->count);
    for (int i = 0; i < piece->count; i++) {
        int64_t begin = rows[i][SEGMENT_OFFSET], end = begin + rows[i][SEGMENT_NUMEL];
        int64_t skipped = begin < piece->begin ? piece->begin - begin : 0, left = end > piece->end ? end - piece->end : 0;
        rows[i][SEGMENT_OFFSET] += skipped - piece->begin;
        rows[i][SEGMENT_FIRST] += skipped;
        rows[i][SEGMENT_NUMEL] -= skipped + left;
    }
    u->segments = (const int64_t(*)[SEGMENT_COLUMNS])rows;
    u->num_segments = piece->count;
    u->params = u->plan->trained_params + u->bucket->first + piece->first;
}

/* ---- to the device and back ---- */

/* Copies to the device a value that a piece's update reads and, if `writes`, changes. */
static Status fetch(Piece *piece, Node *after, bool writes, Value **value)
{
    const Update *u = &piece->update;
    Node         *node;
    if (u->options->use_zero_copy || value_root(*value, NULL)->space == SPACE_DEVICE) return OK;
    TRY(add_copy(u->graph, STREAM_COPY_IN, "piece", *value, NULL, &node));
    if (after) node_add_after(u->graph, node, after);
    *value = node->out[0];
    if (writes) piece->staged[piece->num_staged++] = *value;
    return OK;
}

static Status fetch_piece(Piece *piece, Node *after)
{
    Update *u = &piece->update;
    if (!piece->count) return OK;
    TRY(fetch(piece, after, false, &u->grads));
    TRY(fetch(piece, after, true, &u->weights));
    for (int k = 0; k < u->bucket->num_states; k++) TRY(fetch(piece, after, true, &u->state[k]));
    return OK;
}

static Value *newest(Value *value)
{
    for (const Use *use = value->first_use; use;) {
        Value *next = NULL;
        for (int k = 0; use->node && k < use->node->num_out; k++)
            if (use->node->out[k] && use->node->out[k]->storage == value) next = use->node->out[k];
        value = next ? next : value;
        use = next ? next->first_use : use->next;
    }
    return value;
}

static Status send_piece(Piece *piece)
{
    for (int i = 0; i < piece->num_staged; i++) {
        Value *staged = piece->staged[i];
        TRY(add_copy(piece->update.graph, STREAM_COPY_OUT, "piece", newest(staged), staged->producer->in[0], &piece->sent));
    }
    return OK;
}

/* ---- pieces ---- */

static Value *value_in(const Updates *all, ValueKind kind, const char *name, DType dtype, int64_t numel, Space space)
{
    Value *value = flat_value(all->shared->graph, kind, name, dtype, numel);
    value->space = space;
    return value;
}

static Space space_of(const CompileOptions *options, const BucketState *state)
{
    return options->offload >> (state->is_copy ? OFFLOAD_MASTER : OFFLOAD_OPTIMIZER) & 1 ? SPACE_HOST : SPACE_DEVICE;
}

/* Whether the updates work on device copies of the bucket's values. */
static bool is_staged(const Updates *all)
{
    bool on_host = all->weights->space == SPACE_HOST || all->grads->space == SPACE_HOST;
    for (int k = 0; k < all->bucket->num_states; k++) on_host = on_host || all->state[k]->space == SPACE_HOST;
    return on_host && !all->shared->options->use_zero_copy;
}

static const int64_t *segment_of(const Updates *all, int index)
{
    return all->shared->plan->segments[all->bucket->first + index];
}

static void fill_piece(const Updates *all, Piece *piece)
{
    Update    *u = &piece->update;
    TensorType elements = elements_type(piece);
    cut_segments(piece);
    u->weights = part_of(piece, all->weights, piece->begin - all->origin, &elements);
    u->grads = part_of(piece, all->grads, piece->begin - all->origin, &elements);
    for (int k = 0; k < u->bucket->num_states; k++) u->state[k] = state_of(piece, k, all->state[k]);
}

static void add_piece(Updates *all, int first, int count, int64_t begin, int64_t end)
{
    if (all->num_pieces == all->cap_pieces) {
        int    bigger = 2 * all->cap_pieces + 16;
        Piece *pieces = arena_array(all->shared->graph->arena, Piece, bigger);
        if (all->num_pieces) memcpy(pieces, all->pieces, sizeof *pieces * (size_t)all->num_pieces);
        all->pieces = pieces;
        all->cap_pieces = bigger;
    }
    Piece *piece = &all->pieces[all->num_pieces++];
    *piece = (Piece){.update = *all->shared, .first = first, .count = count, .begin = begin, .end = end, .exchange = all->exchange};
    piece->update.bucket = all->bucket;
    if (count) fill_piece(all, piece);
}

/* Adds a piece of parameter `index`, if this rank updates it. */
static void add_whole_parameter(Updates *all, int index)
{
    const int64_t *segment = segment_of(all, index);
    int64_t        begin = segment[SEGMENT_OFFSET], numel = segment[SEGMENT_NUMEL];
    if (numel) add_piece(all, index, 1, begin, begin + numel);
}

/* Adds the pieces of all groups. A rank that updates nothing of a group takes part with a piece without parameters. */
static void add_groups(Updates *all)
{
    Value *const flat[] = {all->weights, all->grads};
    int          world = all->shared->plan->world, i = 0;
    for (int g = 0; g < all->bucket->num_groups; g++) {
        const Chunk *group = &all->bucket->groups[g];
        int64_t      at = group->first / world, numel = group->numel / world;
        int          before = all->num_pieces;
        all->exchange = all->num_exchanges++;
        Exchange *exchange = &all->exchanges[all->exchange];
        *exchange = (Exchange){.flat = {flat[0], flat[1]}, .at = at};
        for (int k = 0; k < 2; k++) {
            const char *name = arena_printf(all->shared->graph->arena, "%s.group%d", flat[k]->name, g);
            exchange->whole[k] = value_in(all, VALUE_STAGED, name, flat[k]->type.dtype, numel, SPACE_DEVICE);
        }
        all->weights = exchange->whole[0];
        all->grads = exchange->whole[1];
        all->origin = at;
        for (; i < all->bucket->count; i++) {
            const int64_t *segment = segment_of(all, i);
            if (segment[SEGMENT_NUMEL] && segment[SEGMENT_OFFSET] >= at + numel) break;
            add_whole_parameter(all, i);
        }
        if (all->num_pieces == before) add_piece(all, 0, 0, at, at);
    }
}

/* Finds the end of the piece of a staged bucket that begins in parameter `first`. It ends within a parameter or before one, at an element
 * where a piece may begin. Returns the piece's number of parameters. */
static int end_piece(const Updates *all, int first, int64_t piece_begin, int64_t *out_end)
{
    int64_t most = all->shared->options->piece_numel, limit = piece_begin + (most < MOMENT_BLOCK ? MOMENT_BLOCK : most);
    int     count = 0;
    for (int i = first; i < all->bucket->count; i++) {
        const int64_t *segment = segment_of(all, i);
        int64_t        begin = segment[SEGMENT_OFFSET], end = begin + segment[SEGMENT_NUMEL];
        bool           is_last = end > limit && begin % MOMENT_BLOCK == 0;
        if (is_last && limit - begin < MOMENT_BLOCK) return count;
        count++;
        *out_end = is_last ? begin + (limit - begin) / MOMENT_BLOCK * MOMENT_BLOCK : end;
        if (is_last) return count;
    }
    return count;
}

static void add_pieces(Updates *all)
{
    int64_t end = 0;
    for (int i = 0; i < all->bucket->count;) {
        const int64_t *segment = segment_of(all, i);
        int64_t        begin = segment[SEGMENT_OFFSET];
        if (begin + segment[SEGMENT_NUMEL] <= end || !segment[SEGMENT_NUMEL]) {
            i++;
            continue;
        }
        if (begin < end) begin = end;
        int count = end_piece(all, i, begin, &end);
        add_piece(all, i, count, begin, end);
        i += count - 1;
    }
}

/* Where this rank's share of the chunk that is gathered first ends; 0 in other buckets. */
static int64_t end_of_first(const Updates *all)
{
    return all->bucket == all->of_first ? (all->first->first + all->first->numel) / all->shared->plan->world : 0;
}

/* Adds the bucket as one piece; the chunk that is gathered first is a piece of its own. */
static void add_flat(Updates *all)
{
    const int64_t ends[] = {end_of_first(all), all->bucket->share_numel};
    int64_t       begin = 0;
    int           first = 0, count = all->bucket->count;
    for (int k = 0; k < 2; begin = ends[k++]) {
        int i = first;
        if (ends[k] == begin) continue;
        while (i < count && (ends[k] == ends[1] || segment_of(all, i)[SEGMENT_OFFSET] < ends[k])) i++;
        add_piece(all, first, i - first, begin, ends[k]);
        first = i;
    }
}

static void add_bucket(Updates *all, const Bucket *bucket, Value *grads)
{
    const CompileOptions *options = all->shared->options;
    int                   before = all->num_pieces;
    all->bucket = bucket;
    all->weights = value_in(all, VALUE_PARAM, bucket->weight_share, bucket->weight, bucket->share_numel, bucket->space);
    all->grads = grads;
    all->origin = 0;
    all->exchange = -1;
    for (int k = 0; k < bucket->num_states; k++) {
        const BucketState *state = &bucket->states[k];
        all->state[k] = value_in(all, VALUE_STATE, state->value, state->dtype, state->numel, space_of(options, state));
    }
    if (bucket->rule->whole && bucket->groups && bucket->division != DIVIDE_STATES) {
        add_groups(all);
    } else if (bucket->rule->whole) {
        for (int i = 0; i < bucket->count; i++) add_whole_parameter(all, i);
    } else if (is_staged(all)) {
        add_pieces(all);
    } else {
        add_flat(all);
    }
    if (bucket != all->of_first) return;
    while (before < all->num_pieces && all->pieces[before].begin < end_of_first(all)) before++;
    all->gather_before = before;
}

/* ---- whole values from shares, and back ---- */

static Value *part_of_exchange(const Update *update, const Exchange *exchange, int k)
{
    Value *flat = exchange->flat[k];
    return flat_part(update->graph, flat, flat->name, exchange->at, type_numel(&exchange->whole[k]->type));
}

/* Fetches the weights and gradients of the value that this rank updates. after: the transfer that frees the memory into which they are
 * fetched; NULL: that memory is free. */
static Status fetch_exchange(const Update *update, const Exchange *exchange, Node *after)
{
    for (int k = 0; k < 2; k++) {
        Value *shares = part_of_exchange(update, exchange, k), *whole = exchange->whole[k];
        Node  *node;
        if (shares->space == SPACE_HOST) {
            TRY(add_copy(update->graph, STREAM_COPY_IN, "exchange", shares, NULL, &node));
            if (after) node_add_after(update->graph, node, after);
            shares = node->out[0];
        }
        whole = flat_part(update->graph, whole, whole->name, 0, type_numel(&whole->type));
        TRY(add_collective(update->graph, &op_all_to_all, update->plan->world, whole->name, shares, whole, &node));
    }
    return OK;
}

static Status send_exchange(const Update *update, Exchange *exchange)
{
    Value *home = part_of_exchange(update, exchange, 0), *direct = home->space == SPACE_DEVICE ? home : NULL;
    TRY(add_collective(update->graph, &op_all_to_all, update->plan->world, home->name, exchange->whole[0], direct, &exchange->sent));
    if (direct) return OK;
    return add_copy(update->graph, STREAM_COPY_OUT, "exchange", exchange->sent->out[0], home, &exchange->sent);
}

/* Starts the transfer of the next group, so that it runs while this one is updated. */
static Status before_piece(const Updates *all, int i)
{
    int index = all->pieces[i].exchange;
    if (index < 0 || (i && all->pieces[i - 1].exchange == index)) return OK;
    if (!index) TRY(fetch_exchange(all->shared, &all->exchanges[0], NULL));
    if (index + 1 == all->num_exchanges) return OK;
    return fetch_exchange(all->shared, &all->exchanges[index + 1], index ? all->exchanges[index - 1].sent : NULL);
}

static Status after_piece(const Updates *all, int i)
{
    int index = all->pieces[i].exchange;
    if (index < 0 || (i + 1 < all->num_pieces && all->pieces[i + 1].exchange == index)) return OK;
    return send_exchange(all->shared, &all->exchanges[index]);
}

static Status gather_first(const Updates *all)
{
    Graph        *graph = all->shared->graph;
    const Bucket *bucket = all->of_first;
    const Chunk  *chunk = all->first;
    int64_t       ranks = all->shared->plan->world;
    Value        *flat = value_in(all, VALUE_PARAM, bucket->weights, bucket->weight, bucket->numel, SPACE_DEVICE);
    Value        *whole = flat_part(graph, flat, flat->name, chunk->first, chunk->numel), *share = graph_find(graph, bucket->weight_share);
    Node         *node;
    share = flat_part(graph, share, share->name, chunk->first / ranks, chunk->numel / ranks);
    return add_collective(graph, &op_gather, ranks, whole->name, share, whole, &node);
}

/* While piece i is updated, piece i + 1 is copied into the memory of piece i - 1. */
Status optimizer_updates(const Update *update, Value *const *grads)
{
    const Plan *plan = update->plan;
    Updates     all = {.shared = update};
    int         num_groups = 0;
    for (int i = 0; i < plan->num_buckets; i++) num_groups += plan->buckets[i].num_groups;
    all.exchanges = arena_array(update->graph->arena, Exchange, num_groups + 1);
    all.first = layout_first_chunk(plan, &all.of_first);
    for (int i = 0; i < plan->num_buckets; i++) add_bucket(&all, &plan->buckets[i], grads[i]);
    if (all.num_pieces) TRY(fetch_piece(&all.pieces[0], NULL));
    for (int i = 0; i < all.num_pieces; i++) {
        Piece *piece = &all.pieces[i];
        if (all.first && i == all.gather_before) TRY(gather_first(&all));
        TRY(before_piece(&all, i));
        if (i + 1 < all.num_pieces) TRY(fetch_piece(&all.pieces[i + 1], i ? all.pieces[i - 1].sent : NULL));
        if (piece->count) TRY(piece->update.bucket->rule->emit(&piece->update));
        TRY(send_piece(piece));
        TRY(after_piece(&all, i));
    }
    return all.first && all.gather_before == all.num_pieces ? gather_first(&all) : OK;
}
