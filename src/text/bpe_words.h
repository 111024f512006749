/* Counts of distinct words, for the BPE trainer. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef struct WordCount {
    Str     word; /* allocated in the arena of WordCounts */
    int64_t count;
} WordCount;

/* A zero-initialised table is ready to use. Not thread-safe. */
typedef struct WordCounts {
    Arena      arena;
    WordCount *words; /* in the order of their first occurrence */
    size_t     len, capacity;
    uint32_t  *slots; /* hash table of word index + 1, open addressing; 0: empty */
    size_t     num_slots;
} WordCounts;

void word_counts_deinit(WordCounts *counts);
void word_counts_add(WordCounts *counts, Str word, int64_t count);
/* Returns the index of a word; -1: absent. */
int64_t word_counts_find(const WordCounts *counts, Str word);
