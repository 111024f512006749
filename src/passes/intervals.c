/* Places intervals one after the other, each in the smallest gap that fits between intervals alive at the same time. A tree over time keeps
 * the addresses that are taken in parts of time, so that the addresses taken in any span of time are known without a look at every
 * interval. */
#include "passes/intervals.h"

#include <stdlib.h>
#include <string.h>

/* ---- addresses taken ---- */

typedef struct Range {
    int64_t begin, end;
} Range;

/* Ranges in order; no two touch. */
typedef struct RangeSet {
    Range *item;
    int    num, capacity;
} RangeSet;

static void reserve(Arena *arena, RangeSet *set, int num)
{
    if (num <= set->capacity) return;
    int    bigger = num > 2 * set->capacity ? num : 2 * set->capacity;
    Range *item = arena_array(arena, Range, bigger);
    if (set->num) memcpy(item, set->item, sizeof *item * (size_t)set->num);
    set->item = item;
    set->capacity = bigger;
}

static void add_range(Arena *arena, RangeSet *set, Range range)
{
    int first = 0, high = set->num; /* first: the first range that touches the new one, once found */
    while (first < high) {
        int middle = (first + high) / 2;
        if (set->item[middle].end < range.begin)
            first = middle + 1;
        else
            high = middle;
    }
    int end = first;
    while (end < set->num && set->item[end].begin <= range.end) end++;
    if (end > first) {
        if (set->item[first].begin < range.begin) range.begin = set->item[first].begin;
        if (set->item[end - 1].end > range.end) range.end = set->item[end - 1].end;
    } else {
        reserve(arena, set, set->num + 1);
    }
    memmove(set->item + first + 1, set->item + end, sizeof(Range) * (size_t)(set->num - end));
    set->item[first] = range;
    set->num += first + 1 - end;
}

/* out: the union of a and b; gaps of less than least_gap are filled. */
static void unite(Arena *arena, const RangeSet *a, const RangeSet *b, int64_t least_gap, RangeSet *out)
{
    int i = 0, k = 0;
    out->num = 0;
    reserve(arena, out, a->num + b->num);
    while (i < a->num || k < b->num) {
        bool         from_a = k == b->num || (i < a->num && a->item[i].begin <= b->item[k].begin);
        const Range *next = from_a ? &a->item[i++] : &b->item[k++];
        Range       *last = out->num ? &out->item[out->num - 1] : NULL;
        if (!last || next->begin - last->end >= least_gap)
            out->item[out->num++] = *next;
        else if (next->end > last->end)
            last->end = next->end;
    }
}

/* ---- times ---- */

/* A binary tree over all times, stored as a heap: node 1 stands for all times, node size + t is the leaf of time t. An interval covers the
 * few largest nodes that lie within it, and touches all nodes from its first and its last leaf up to the root. */
typedef struct Timeline {
    Arena    *arena;
    int       size;                /* leaves: a power of two */
    RangeSet *covering, *touching; /* by node: addresses taken by intervals that cover the node; by intervals that touch the node */
    RangeSet  taken, spare;        /* used by a search */
} Timeline;

static Timeline timeline_make(Arena *arena, int num_times)
{
    Timeline t = {.arena = arena, .size = 1};
    while (t.size < num_times) t.size *= 2;
    t.covering = arena_array(arena, RangeSet, 2 * t.size);
    t.touching = arena_array(arena, RangeSet, 2 * t.size);
    return t;
}

static void timeline_clear(Timeline *t)
{
    for (int i = 0; i < 2 * t->size; i++) t->covering[i].num = t->touching[i].num = 0;
}

static void timeline_add(Timeline *t, const Interval *item)
{
    Range range = {item->offset, item->offset + item->bytes};
    int   first = item->start + t->size, last = item->end + t->size;
    for (int a = first, b = last + 1; a < b; a /= 2, b /= 2) {
        if (a & 1) add_range(t->arena, &t->covering[a++], range);
        if (b & 1) add_range(t->arena, &t->covering[--b], range);
    }
    for (; first; first /= 2, last /= 2) {
        add_range(t->arena, &t->touching[first], range);
        if (last != first) add_range(t->arena, &t->touching[last], range);
    }
}

static void collect(Timeline *t, const RangeSet *set, int64_t least_gap)
{
    if (!set->num) return;
    unite(t->arena, &t->taken, set, least_gap, &t->spare);
    RangeSet spare = t->taken;
    t->taken = t->spare;
    t->spare = spare;
}

/* t->taken: the addresses taken during the item's life; gaps that are too small for the item count as taken. */
static void find_taken(Timeline *t, const Interval *item)
{
    int first = item->start + t->size, last = item->end + t->size;
    t->taken.num = 0;
    for (int a = first, b = last + 1; a < b; a /= 2, b /= 2) {
        if (a & 1) {
            collect(t, &t->covering[a], item->bytes);
            collect(t, &t->touching[a++], item->bytes);
        }
        if (b & 1) {
            collect(t, &t->covering[--b], item->bytes);
            collect(t, &t->touching[b], item->bytes);
        }
    }
    while (first > 1) {
        first /= 2;
        last /= 2;
        collect(t, &t->covering[first], item->bytes);
        if (last != first) collect(t, &t->covering[last], item->bytes);
    }
}

/* ---- orders ---- */

typedef struct Placing {
    Interval **items; /* in the order of placing */
    int        num;
    Timeline   times;
    Interval  *intervals;
    int        num_intervals;
    int64_t   *best; /* offsets of the lowest placing so far, by interval */
    int64_t    height;
} Placing;

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

/* The offset of the smallest gap that fits, the lowest among equal ones; if none fits, the end of all ranges. */
static int64_t find_offset(const RangeSet *taken, int64_t bytes)
{
    int64_t best = -1, best_gap = INT64_MAX, end = 0;
    for (int i = 0; i < taken->num; i++) {
        int64_t gap = taken->item[i].begin - end;
        if (gap >= bytes && gap < best_gap) {
            best = end;
            best_gap = gap;
        }
        end = taken->item[i].end;
    }
    return best >= 0 ? best : end;
}

static void try_order(Placing *p)
{
    int64_t height = 0;
    timeline_clear(&p->times);
    for (int i = 0; i < p->num; i++) {
        Interval *item = p->items[i];
        find_taken(&p->times, item);
        item->offset = find_offset(&p->times.taken, item->bytes);
        timeline_add(&p->times, item);
        if (item->offset + item->bytes > height) height = item->offset + item->bytes;
    }
    if (height >= p->height) return;
    p->height = height;
    for (int i = 0; i < p->num_intervals; i++) p->best[i] = p->intervals[i].offset;
}

/* Moves the item that reaches highest to the front: it is placed first next time. */
static void raise_highest(Placing *p)
{
    int highest = 0;
    for (int i = 1; i < p->num; i++)
        if (p->items[i]->offset + p->items[i]->bytes > p->items[highest]->offset + p->items[highest]->bytes) highest = i;
    Interval *item = p->items[highest];
    memmove(p->items + 1, p->items, sizeof *p->items * (size_t)highest);
    p->items[0] = item;
}

static int count_times(const Interval *intervals, int num)
{
    int num_times = 0;
    for (int i = 0; i < num; i++)
        if (intervals[i].end >= num_times) num_times = intervals[i].end + 1;
    return num_times;
}

int64_t intervals_live(Arena *arena, const Interval *intervals, int num)
{
    int      num_times = count_times(intervals, num);
    int64_t *delta = arena_array(arena, int64_t, num_times + 1), live = 0, most = 0;
    for (int i = 0; i < num; i++) {
        delta[intervals[i].start] += intervals[i].bytes;
        delta[intervals[i].end + 1] -= intervals[i].bytes;
    }
    for (int i = 0; i < num_times; i++) {
        live += delta[i];
        if (live > most) most = live;
    }
    return most;
}

/* Places the largest intervals first, which usually comes within a few percent of the bound (out_live). If it doesn't, tries other orders,
 * then repeatedly moves the highest interval to the front of the last order. */
int64_t intervals_place(Arena *arena, Interval *intervals, int num, int64_t *out_live)
{
    enum { REPAIRS = 64, REPAIRED_INTERVALS = 4096 };
    int (*const orders[])(const void *, const void *) = {by_size, by_area, by_start};
    Placing p = {.intervals = intervals, .num_intervals = num, .height = INT64_MAX};
    p.items = arena_array(arena, Interval *, num + 1);
    p.best = arena_array(arena, int64_t, num + 1);
    for (int i = 0; i < num; i++)
        if (intervals[i].bytes) p.items[p.num++] = &intervals[i];
    *out_live = intervals_live(arena, intervals, num);
    if (!p.num) return 0;
    p.times = timeline_make(arena, count_times(intervals, num));
    int64_t enough = *out_live + *out_live / 128;
    for (int order = 0; order < 3 && p.height > enough; order++) {
        qsort(p.items, (size_t)p.num, sizeof(Interval *), orders[order]);
        try_order(&p);
    }
    for (int i = 0; i < REPAIRS && p.height > enough && p.num <= REPAIRED_INTERVALS; i++) {
        raise_highest(&p);
        try_order(&p);
    }
    for (int i = 0; i < num; i++) intervals[i].offset = p.best[i];
    return p.height;
}
