/* Pairs are collected, sorted once, and equal ones counted; a lookup is a binary search. */
#include "infer/bigram.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>

typedef struct Pair {
    uint64_t key; /* v << 32 | w */
    uint32_t count;
} Pair;

struct Bigram {
    int32_t   vocab_size;
    uint64_t *seen; /* every pair, in the order of the text; sorted by bigram_finish */
    size_t    num_seen, capacity;
    Pair     *pairs; /* sorted, without duplicates */
    size_t    num_pairs;
    uint32_t *follow_count, *follow_kinds; /* (vocab_size): c(v) and n(v) of bigram.h */
    uint32_t *count;                       /* (vocab_size): occurrences of each token */
    uint64_t  total, kinds;
};

Bigram *bigram_create(int32_t vocab_size)
{
    Bigram *b = calloc_or_end(1, sizeof *b);
    b->vocab_size = vocab_size;
    b->follow_count = calloc_or_end((size_t)vocab_size, sizeof *b->follow_count);
    b->follow_kinds = calloc_or_end((size_t)vocab_size, sizeof *b->follow_kinds);
    b->count = calloc_or_end((size_t)vocab_size, sizeof *b->count);
    return b;
}

void bigram_destroy(Bigram *b)
{
    if (!b) return;
    free(b->seen);
    free(b->pairs);
    free(b->follow_count);
    free(b->follow_kinds);
    free(b->count);
    free(b);
}

void bigram_add(Bigram *b, const int32_t *ids, size_t count)
{
    b->seen = array_room(b->seen, b->num_seen + count, &b->capacity, sizeof *b->seen);
    for (size_t i = 0; i < count; i++) {
        b->kinds += b->count[ids[i]]++ == 0;
        b->total++;
        if (i > 0) b->seen[b->num_seen++] = (uint64_t)(uint32_t)ids[i - 1] << 32 | (uint32_t)ids[i];
    }
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void bigram_finish(Bigram *b)
{
    if (b->num_seen) qsort(b->seen, b->num_seen, sizeof *b->seen, by_key);
    b->pairs = malloc_or_end((b->num_seen + 1) * sizeof *b->pairs);
    for (size_t i = 0; i < b->num_seen; i++) {
        uint32_t v = (uint32_t)(b->seen[i] >> 32);
        if (b->num_pairs == 0 || b->pairs[b->num_pairs - 1].key != b->seen[i]) {
            b->pairs[b->num_pairs++] = (Pair){b->seen[i], 0};
            b->follow_kinds[v]++;
        }
        b->pairs[b->num_pairs - 1].count++;
        b->follow_count[v]++;
    }
}

double bigram_loss(const Bigram *b, const int32_t *ids, size_t count)
{
    double sum = 0;
    for (size_t i = 1; i < count; i++) {
        uint32_t    v = (uint32_t)ids[i - 1], w = (uint32_t)ids[i];
        uint64_t    key = (uint64_t)v << 32 | w;
        const Pair *pair = bsearch(&key, b->pairs, b->num_pairs, sizeof *b->pairs, by_key);
        double      uniform = 1.0 / b->vocab_size, n = (double)b->kinds, nv = b->follow_kinds[v];
        double      single = b->total ? ((double)b->count[w] + n * uniform) / ((double)b->total + n) : uniform;
        double      p = nv > 0 ? ((pair ? pair->count : 0) + nv * single) / (b->follow_count[v] + nv) : single;
        sum -= log(p);
    }
    return sum;
}
