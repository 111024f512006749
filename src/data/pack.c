/* Best fit in O(n log capacity): open rows wait in one queue per free length, and a tree of 64-ary bit sets finds the
 * least free length that is enough. */
#include "data/pack.h"

#include <stdlib.h>
#include <string.h>

enum { BITSET_MAX_LEVELS = 6 }; /* 64^6 > 2^31 */

typedef struct BitTree {
    uint64_t *words[BITSET_MAX_LEVELS];
    int       num_levels;
} BitTree;

static void bits_init(BitTree *tree, Arena *arena, int64_t count)
{
    do {
        count = (count + 63) / 64;
        tree->words[tree->num_levels++] = arena_array(arena, uint64_t, count);
    } while (count > 1);
}

static void bits_set(BitTree *tree, int64_t at)
{
    for (int level = 0; level < tree->num_levels; level++, at >>= 6) tree->words[level][at >> 6] |= (uint64_t)1 << (at & 63);
}

static void bits_clear(BitTree *tree, int64_t at)
{
    for (int level = 0; level < tree->num_levels; level++, at >>= 6) {
        uint64_t *word = &tree->words[level][at >> 6];
        *word &= ~((uint64_t)1 << (at & 63));
        if (*word) return;
    }
}

/* The first set bit at or after `at`, or -1. The tree has `count` bits. */
static int64_t bits_next(const BitTree *tree, int64_t at, int64_t count)
{
    int64_t size = count;
    for (int level = 0; level < tree->num_levels; level++) {
        if (at >= size) return -1;
        uint64_t word = tree->words[level][at >> 6] >> (at & 63);
        if (word) {
            at += __builtin_ctzll(word);
            while (level-- > 0) at = at * 64 + __builtin_ctzll(tree->words[level][at]);
            return at;
        }
        at = (at >> 6) + 1;
        size = (size + 63) >> 6;
    }
    return -1;
}

/* Returns the sample indices: longest samples first, samples of equal length in order of index (a counting sort). */
static int64_t *sort_by_length(Arena *arena, const int32_t *lengths, int64_t num_samples, int32_t capacity)
{
    int64_t *start = arena_array(arena, int64_t, (int64_t)capacity + 2);
    int64_t *order = arena_array(arena, int64_t, num_samples);
    for (int64_t i = 0; i < num_samples; i++) {
        CHECK(lengths[i] >= 1 && lengths[i] <= capacity);
        start[capacity - lengths[i] + 1]++;
    }
    for (int32_t c = 0; c < capacity; c++) start[c + 1] += start[c];
    for (int64_t i = 0; i < num_samples; i++) order[start[capacity - lengths[i]]++] = i;
    return order;
}

typedef struct Rows {
    BitTree  free_lengths; /* bit c: some open row has c tokens free */
    int64_t *first, *last; /* queue of rows by free length; -1: empty. (capacity + 1) */
    int64_t *next;         /* by row: the next row in its queue; -1: none */
    int64_t *row_of;       /* by sample: its row */
    int64_t  num_rows;
} Rows;

static void rows_push(Rows *rows, int64_t row, int32_t free_length)
{
    if (free_length == 0) return;
    rows->next[row] = -1;
    if (rows->first[free_length] < 0) {
        rows->first[free_length] = row;
        bits_set(&rows->free_lengths, free_length);
    } else {
        rows->next[rows->last[free_length]] = row;
    }
    rows->last[free_length] = row;
}

static int64_t rows_pop(Rows *rows, int64_t free_length)
{
    int64_t row = rows->first[free_length];
    rows->first[free_length] = rows->next[row];
    if (rows->next[row] < 0) bits_clear(&rows->free_lengths, free_length);
    return row;
}

/* Builds the rows' lists of samples from row_of, in the order in which samples were placed. */
static void rows_collect(const Rows *rows, const int64_t *order, int64_t num_samples, Packing *out)
{
    out->num_rows = rows->num_rows;
    out->begin = calloc_or_end((size_t)rows->num_rows + 2, sizeof *out->begin);
    out->items = malloc_or_end(sizeof *out->items * (size_t)(num_samples + 1));
    int64_t *at = out->begin + 1; /* shifted by one while filling */
    for (int64_t i = 0; i < num_samples; i++)
        if (rows->row_of[i] + 1 < rows->num_rows) at[rows->row_of[i] + 1]++;
    for (int64_t row = 1; row < rows->num_rows; row++) at[row] += at[row - 1];
    for (int64_t i = 0; i < num_samples; i++) out->items[at[rows->row_of[order[i]]]++] = order[i];
    out->begin[0] = 0;
}

void pack_best_fit(const int32_t *lengths, int64_t num_samples, int32_t capacity, Packing *out)
{
    CHECK(capacity >= 1 && num_samples >= 0);
    *out = (Packing){0};
    Arena    arena = {0};
    int64_t *order = sort_by_length(&arena, lengths, num_samples, capacity);
    Rows     rows = {
            .first = arena_array(&arena, int64_t, (int64_t)capacity + 1),
            .last = arena_array(&arena, int64_t, (int64_t)capacity + 1),
            .next = arena_array(&arena, int64_t, num_samples),
            .row_of = arena_array(&arena, int64_t, num_samples),
    };
    bits_init(&rows.free_lengths, &arena, (int64_t)capacity + 1);
    memset(rows.first, 0xff, sizeof *rows.first * ((size_t)capacity + 1));
    for (int64_t i = 0; i < num_samples; i++) {
        int32_t length = lengths[order[i]];
        int64_t found = bits_next(&rows.free_lengths, length, (int64_t)capacity + 1);
        int64_t row = found < 0 ? rows.num_rows++ : rows_pop(&rows, found);
        rows.row_of[order[i]] = row;
        rows_push(&rows, row, (int32_t)(found < 0 ? capacity : found) - length);
    }
    rows_collect(&rows, order, num_samples, out);
    arena_deinit(&arena);
}

void packing_deinit(Packing *packing)
{
    free(packing->begin);
    free(packing->items);
    *packing = (Packing){0};
}
