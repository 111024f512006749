/* Placing intervals: the offsets equal those of a search through all intervals, and no two overlap. */
#include "base/philox.h"
#include "passes/intervals.h"
#include "test.h"

/* ---- the slow reference: what is alive with an interval, one by one ---- */

static int by_offset(const void *a, const void *b)
{
    const Interval *x = *(Interval *const *)a, *y = *(Interval *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int64_t place_slowly(Interval **items, int num)
{
    int64_t    height = 0;
    Interval **alive = calloc((size_t)num + 1, sizeof *alive);
    for (int n = 0; n < num; n++) {
        Interval *item = items[n];
        int64_t   best = -1, best_gap = INT64_MAX, end = 0;
        int       count = 0;
        for (int k = 0; k < n; k++)
            if (items[k]->start <= item->end && items[k]->end >= item->start) alive[count++] = items[k];
        qsort(alive, (size_t)count, sizeof *alive, by_offset);
        for (int k = 0; k < count; k++) {
            int64_t gap = alive[k]->offset - end;
            if (gap >= item->bytes && gap < best_gap) {
                best = end;
                best_gap = gap;
            }
            if (alive[k]->offset + alive[k]->bytes > end) end = alive[k]->offset + alive[k]->bytes;
        }
        item->offset = best >= 0 ? best : end;
        if (item->offset + item->bytes > height) height = item->offset + item->bytes;
    }
    free(alive);
    return height;
}

static double area(const Interval *x)
{
    return (double)x->bytes * (x->end - x->start + 1);
}

static int64_t length(const Interval *x)
{
    return x->end - x->start;
}

static bool comes_first(int order, const Interval *x, const Interval *y)
{
    if (order == 0 && x->bytes != y->bytes) return x->bytes > y->bytes;
    if (order == 0 && length(x) != length(y)) return length(x) > length(y);
    if (order == 1 && area(x) != area(y)) return area(x) > area(y);
    if (order == 2 && x->start != y->start) return x->start < y->start;
    if (order == 2 && x->bytes != y->bytes) return x->bytes > y->bytes;
    return x->id < y->id;
}

static void sort(int order, Interval **items, int num)
{
    for (int i = 1; i < num; i++)
        for (int k = i; k > 0 && comes_first(order, items[k], items[k - 1]); k--) {
            Interval *item = items[k];
            items[k] = items[k - 1];
            items[k - 1] = item;
        }
}

static void raise_highest(Interval **items, int num)
{
    int highest = 0;
    for (int i = 1; i < num; i++)
        if (items[i]->offset + items[i]->bytes > items[highest]->offset + items[highest]->bytes) highest = i;
    Interval *item = items[highest];
    for (int i = highest; i > 0; i--) items[i] = items[i - 1];
    items[0] = item;
}

/* Tries several orders; leaves the offsets of the try with the lowest height. */
static int64_t reference(Interval *all, int num, int64_t live, int *out_tries)
{
    Interval **items = calloc((size_t)num + 1, sizeof *items);
    int64_t   *best = calloc((size_t)num + 1, sizeof *best), lowest = INT64_MAX;
    int        count = 0;
    for (int i = 0; i < num; i++)
        if (all[i].bytes) items[count++] = &all[i];
    for (*out_tries = 0; count && *out_tries < 3 + 64 && lowest > live + live / 128; (*out_tries)++) {
        if (*out_tries < 3)
            sort(*out_tries, items, count);
        else
            raise_highest(items, count);
        int64_t height = place_slowly(items, count);
        if (height >= lowest) continue;
        lowest = height;
        for (int i = 0; i < num; i++) best[i] = all[i].offset;
    }
    for (int i = 0; i < num; i++) all[i].offset = best[i];
    free(items);
    free(best);
    return count ? lowest : 0;
}

/* ---- cases ---- */

static int draw(uint32_t seed, uint32_t index, uint32_t salt, int below)
{
    return (int)(philox4x32(index, salt, seed, 0, 9).v[0] % (uint32_t)below);
}

/* Lifetimes as in programs: nested ones, whose ends mirror their starts, among short ones; few different sizes or many. */
static void fill(Interval *items, int num, uint32_t seed)
{
    int times = 1 + draw(seed, 0, 1, 4 * num), sizes = draw(seed, 0, 2, 3) ? 6 : 5000;
    for (int i = 0; i < num; i++) {
        uint32_t at = (uint32_t)i;
        int      start = draw(seed, at, 3, times), end;
        if (draw(seed, at, 4, 3))
            end = start + draw(seed, at, 5, 6);
        else
            end = draw(seed, 0, 6, 2) ? times - 1 - start : start + draw(seed, at, 7, times);
        if (end < start) end = start;
        items[i] = (Interval){
            .id = 2 * i + 1, .start = start, .end = end < times ? end : times - 1, .bytes = 256 * (int64_t)draw(seed, at, 8, sizes)};
    }
}

static int64_t largest_live(const Interval *items, int num)
{
    int64_t most = 0;
    for (int i = 0; i < num; i++) { /* the largest live size is reached at some start */
        int64_t live = 0;
        for (int k = 0; k < num; k++)
            if (items[k].start <= items[i].start && items[k].end >= items[i].start) live += items[k].bytes;
        if (live > most) most = live;
    }
    return most;
}

static void offsets_are_those_of_a_full_search(void)
{
    enum { MOST = 160 };
    int repaired = 0;
    for (uint32_t seed = 0; seed < 300; seed++) {
        Interval items[MOST], slow[MOST];
        Arena    arena = {0};
        int      num = draw(seed, 1, 0, MOST), tries;
        int64_t  live;
        fill(items, num, seed);
        fill(slow, num, seed);
        int64_t height = intervals_place(&arena, items, num, &live);
        EXPECT_INT(live, largest_live(items, num));
        EXPECT_INT(height, reference(slow, num, live, &tries));
        EXPECT(height >= live);
        for (int i = 0; i < num; i++) EXPECT_INT(items[i].offset, slow[i].offset);
        repaired += tries > 3;
        arena_deinit(&arena);
    }
    EXPECT(repaired > 50); /* the cases are hard enough that all tries are needed */
}

static void what_lives_together_shares_no_byte(void)
{
    enum { COUNT = 3000 };
    Interval *items = calloc(COUNT, sizeof *items);
    Arena     arena = {0};
    int64_t   live;
    fill(items, COUNT, 77);
    int64_t height = intervals_place(&arena, items, COUNT, &live);
    EXPECT((double)height <= 1.25 * (double)live);
    for (int a = 0; a < COUNT; a++) {
        EXPECT(items[a].offset >= 0 && items[a].offset + items[a].bytes <= height);
        for (int b = 0; b < a; b++) {
            bool together = items[a].start <= items[b].end && items[b].start <= items[a].end;
            bool share = items[a].offset < items[b].offset + items[b].bytes && items[b].offset < items[a].offset + items[a].bytes;
            if (together && share && items[a].bytes && items[b].bytes) EXPECT(!"two that live together share memory");
        }
    }
    arena_deinit(&arena);
    free(items);
}

static void nothing_takes_nothing(void)
{
    Arena    arena = {0};
    Interval none = {.id = 1, .start = 3, .end = 4}, one = {.id = 1, .start = 0, .end = 0, .bytes = 7};
    int64_t  live = -1;
    EXPECT_INT(intervals_place(&arena, NULL, 0, &live), 0);
    EXPECT_INT(live, 0);
    EXPECT_INT(intervals_place(&arena, &none, 1, &live), 0);
    EXPECT_INT(intervals_place(&arena, &one, 1, &live), 7);
    EXPECT_INT(live, 7);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(offsets_are_those_of_a_full_search), TEST(what_lives_together_shares_no_byte), TEST(nothing_takes_nothing))
