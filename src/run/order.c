/* Makes waits from the graph, and clocks from waits. Checks the order against the bytes that launches touch. */
#include "run/order.h"

#include <string.h>

/* The last write of a stretch of a root value's memory, or the last read of it by one stream. */
typedef struct Touch {
    struct Touch *next;
    int64_t       begin, end; /* bytes [begin, end) of the root value */
    int32_t       launch;
    bool          write;
} Touch;

/* Where a root value's life begins and ends. */
typedef struct Life {
    int32_t first;              /* first launch that touches it; -1: none */
    int32_t last[STREAM_COUNT]; /* by stream: 1 + last launch that touches it; 0: none */
} Life;

struct Order {
    int     count;
    bool    single;
    Stream *stream;
    int32_t (*wait)[STREAM_COUNT];  /* waits of each launch, as Launch.wait */
    int32_t (*clock)[STREAM_COUNT]; /* by launch: 1 + the last launch of each stream that has finished when it starts, itself included */
    Life *life;                     /* by id of a root value; NULL: the order isn't made from a graph */
    int  *makers[STREAM_COUNT];     /* by stream: launches that make an activation, or are the first to touch a staged value */
    int   num_makers[STREAM_COUNT];
};

bool node_is_launch(const Node *node)
{
    return !(node->op->flags & OP_VIEW) && !(node->flags & NODE_ONCE);
}

static Order *order_create(Arena *arena, int count)
{
    Order *order = arena_new(arena, Order);
    order->count = count;
    order->single = true;
    order->stream = arena_array(arena, Stream, count + 1);
    order->wait = arena_alloc(arena, sizeof order->wait[0] * (size_t)(count + 1));
    order->clock = arena_alloc(arena, sizeof *order->clock * (size_t)(count + 1));
    return order;
}

static void join(int32_t clock[STREAM_COUNT], const int32_t other[STREAM_COUNT])
{
    for (int s = 0; s < STREAM_COUNT; s++)
        if (other[s] > clock[s]) clock[s] = other[s];
}

/* Sets waits and clock of launch `index`. last: 1 + the latest launch of each stream so far. need: 1 + the launch of each stream that must
 * have finished; it becomes a wait unless other waits imply it. */
static void settle(Order *order, int index, int32_t last[STREAM_COUNT], const int32_t need[STREAM_COUNT])
{
    Stream   own = order->stream[index];
    int32_t *clock = order->clock[index];
    if (last[own]) join(clock, order->clock[last[own] - 1]);
    for (int s = 0; s < STREAM_COUNT; s++) {
        bool implied = s == (int)own || need[s] <= clock[s];
        for (int other = 0; other < STREAM_COUNT && !implied; other++)
            implied = other != s && other != (int)own && need[other] && order->clock[need[other] - 1][s] >= need[s];
        order->wait[index][s] = implied ? 0 : need[s];
    }
    for (int s = 0; s < STREAM_COUNT; s++)
        if (order->wait[index][s]) join(clock, order->clock[order->wait[index][s] - 1]);
    clock[own] = last[own] = index + 1;
}

/* ---- from a graph ---- */

typedef struct Builder {
    Order  *order;
    Arena  *arena;
    Touch **touches; /* by root value id: its touches */
    int32_t need[STREAM_COUNT];
} Builder;

static void need(Builder *b, int launch)
{
    int32_t *most = &b->need[b->order->stream[launch]];
    if (launch + 1 > *most) *most = launch + 1;
}

/* Launch `index` touches `value`: adds earlier touches that conflict with this one to b->need, and forgets those that this one covers. */
static void touch(Builder *b, Value *value, int index, bool write)
{
    int64_t offset;
    Value  *root = value_root(value, &offset);
    int64_t begin = dtype_bytes(value->type.dtype, offset), end = begin + type_bytes(&value->type);
    Life   *life = &b->order->life[root->id];
    if (life->first < 0) life->first = index;
    life->last[b->order->stream[index]] = index + 1;
    for (Touch **at = &b->touches[root->id]; *at;) {
        const Touch *t = *at;
        bool         apart = t->end <= begin || t->begin >= end;
        if (!apart && t->launch != index && (write || t->write)) need(b, t->launch);
        bool covered = t->begin >= begin && t->end <= end;
        bool same_reader = !t->write && b->order->stream[t->launch] == b->order->stream[index];
        if (covered && (write || same_reader))
            *at = t->next;
        else
            at = &(*at)->next;
    }
    Touch *t = arena_new(b->arena, Touch);
    *t = (Touch){b->touches[root->id], begin, end, index, write};
    b->touches[root->id] = t;
}

/* A graph output is read when the program has ended: so the root value in whose memory it lives is alive until then. */
static void touch_outputs(Order *order, const Graph *graph)
{
    for (int i = 0; i < graph->num_outputs; i++) {
        Life *life = &order->life[value_root(graph->outputs[i].value, NULL)->id];
        for (int s = 0; s < STREAM_COUNT; s++) life->last[s] = INT32_MAX;
    }
}

static void read_streams(Order *order, const Graph *graph)
{
    int index = 0;
    for (const Node *node = graph->first; node; node = node->next) {
        if (!node_is_launch(node)) continue;
        order->stream[index++] = node->stream;
        order->single = order->single && node->stream == order->stream[0];
    }
}

/* Fills order->makers; a launch that makes several values is listed once. */
static void find_makers(Order *order, Arena *arena, const Graph *graph)
{
    bool *makes = arena_array(arena, bool, order->count + 1);
    for (int i = 0; i < graph->num_values; i++) {
        ValueKind kind = graph->values[i]->kind;
        if ((kind == VALUE_ACTIVATION || kind == VALUE_STAGED) && order->life[i].first >= 0) makes[order->life[i].first] = true;
    }
    for (int s = 0; s < STREAM_COUNT; s++) order->makers[s] = arena_array(arena, int, order->count + 1);
    for (int i = 0; i < order->count; i++)
        if (makes[i]) order->makers[order->stream[i]][order->num_makers[order->stream[i]]++] = i;
}

static int count_launches(const Graph *graph)
{
    int count = 0;
    for (const Node *node = graph->first; node; node = node->next) count += node_is_launch(node);
    return count;
}

Order *order_make(Arena *arena, const Graph *graph)
{
    Order *order = order_create(arena, count_launches(graph));
    read_streams(order, graph);
    if (order->single) return order;
    order->life = arena_array(arena, Life, graph->num_values + 1);
    for (int i = 0; i < graph->num_values; i++) order->life[i].first = -1;
    Builder  b = {.order = order, .arena = arena, .touches = arena_array(arena, Touch *, graph->num_values + 1)};
    int32_t *launch_of = arena_array(arena, int32_t, graph->next_node_id + 1);
    int32_t  last[STREAM_COUNT] = {0};
    int      index = 0;
    for (Node *node = graph->first; node; node = node->next) {
        if (!node_is_launch(node)) continue;
        memset(b.need, 0, sizeof b.need);
        for (int i = 0; i < node->num_after; i++)
            if (launch_of[node->after[i]->id]) need(&b, launch_of[node->after[i]->id] - 1); /* 0: the node was removed, or is no launch */
        for (int i = 0; i < node->num_in; i++)
            if (node->in[i]) touch(&b, node->in[i], index, false);
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) touch(&b, node->out[k], index, true);
        launch_of[node->id] = index + 1;
        settle(order, index++, last, b.need);
    }
    touch_outputs(order, graph);
    find_makers(order, arena, graph);
    return order;
}

Order *order_of_launches(Arena *arena, const Launch *launches, int count)
{
    Order  *order = order_create(arena, count);
    int32_t last[STREAM_COUNT] = {0};
    for (int i = 0; i < count; i++) {
        order->stream[i] = launches[i].stream;
        order->single = order->single && launches[i].stream == launches[0].stream;
        settle(order, i, last, launches[i].wait);
    }
    return order;
}

/* ---- questions ---- */

bool order_is_single(const Order *order)
{
    return order->single;
}

const int32_t *order_wait(const Order *order, int index)
{
    return order->wait[index];
}

bool order_before(const Order *order, int a, int b)
{
    if (order->single) return a < b;
    return a != b && order->clock[b][order->stream[a]] > a;
}

/* Whether everything that touches the value has finished when launch `index` starts. */
static bool is_over(const Order *order, const Life *life, int index)
{
    for (int s = 0; s < STREAM_COUNT; s++)
        if (life->last[s] > order->clock[index][s] || life->last[s] == index + 1) return false;
    return true;
}

bool order_is_last_touch(const Order *order, const Value *value, int index)
{
    for (int s = 0; !order->single && s < STREAM_COUNT; s++)
        if (order->life[value->id].last[s] > order->clock[index][s]) return false;
    return true;
}

int order_last_beside(const Order *order, const Value *value)
{
    const Life *life = &order->life[value->id];
    int         last = -1;
    if (life->first < 0) return -1;
    for (int s = 0; s < STREAM_COUNT; s++) { /* a value whose life is over for one launch is over for all later launches of the stream */
        int low = 0, high = order->num_makers[s];
        while (low < high) {
            int middle = (low + high) / 2;
            if (is_over(order, life, order->makers[s][middle]))
                high = middle;
            else
                low = middle + 1;
        }
        if (low && order->makers[s][low - 1] > last) last = order->makers[s][low - 1];
    }
    return last;
}

/* ---- the check ---- */

static void add_access(AccessList *list, const void *at, int64_t bytes, bool write)
{
    if (!at || bytes <= 0) return;
    ((Access *)list->items)[list->count++] = (Access){0, write, (int64_t)(intptr_t)at, (int64_t)(intptr_t)at + bytes};
}

AccessList *order_accesses(Arena *arena, const Launch *launches, int count)
{
    AccessList *lists = arena_array(arena, AccessList, count + 1);
    for (int i = 0; i < count; i++) {
        const KernelArgs *args = &launches[i].args;
        lists[i].items = arena_array(arena, Access, args->num_in + args->num_out + 1);
        for (int k = 0; k < args->num_in; k++) add_access(&lists[i], args->in[k].data, type_bytes(&args->in[k].type), false);
        for (int k = 0; k < args->num_out; k++) add_access(&lists[i], args->out[k].data, type_bytes(&args->out[k].type), true);
        add_access(&lists[i], args->workspace, (int64_t)args->workspace_bytes, true);
    }
    return lists;
}

static bool conflict(const AccessList *a, const AccessList *b, Access *out)
{
    for (int i = 0; i < a->count; i++)
        for (int k = 0; k < b->count; k++) {
            const Access *x = &a->items[i], *y = &b->items[k];
            if (x->memory != y->memory || !(x->write || y->write) || x->end <= y->begin || y->end <= x->begin) continue;
            *out = *y;
            return true;
        }
    return false;
}

/* Bit j of row i: launch j has finished when launch i starts. Made row by row from the waits. */
static uint64_t *closure(Arena *arena, const Launch *launches, int count, int words)
{
    uint64_t *done = arena_array(arena, uint64_t, (int64_t)words * count + 1);
    int       last[STREAM_COUNT] = {0};
    for (int i = 0; i < count; i++) {
        uint64_t *row = done + (size_t)i * (size_t)words;
        for (int s = 0; s < STREAM_COUNT; s++) {
            int before = s == (int)launches[i].stream ? last[s] : launches[i].wait[s];
            if (!before) continue;
            for (int w = 0; w < words; w++) row[w] |= done[(size_t)(before - 1) * (size_t)words + (size_t)w];
            row[(before - 1) / 64] |= UINT64_C(1) << (before - 1) % 64;
        }
        last[launches[i].stream] = i + 1;
    }
    return done;
}

bool order_check(Arena *arena, const Launch *launches, const AccessList *accesses, int count, Race *out_race)
{
    int       words = (count + 63) / 64;
    uint64_t *done = closure(arena, launches, count, words);
    for (int second = 0; second < count; second++)
        for (int first = 0; first < second; first++) {
            Access at;
            if (done[(size_t)second * (size_t)words + (size_t)(first / 64)] >> first % 64 & 1) continue;
            if (!conflict(&accesses[first], &accesses[second], &at)) continue;
            *out_race = (Race){first, second, at};
            return false;
        }
    return true;
}
