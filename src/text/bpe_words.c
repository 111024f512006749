/* Distinct words, in an open-addressing hash table that doubles when it is half full. */
#include "text/bpe_words.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

void word_counts_deinit(WordCounts *counts)
{
    arena_deinit(&counts->arena);
    free(counts->words);
    free(counts->slots);
    *counts = (WordCounts){0};
}

static size_t slot_of(const WordCounts *counts, Str word)
{
    size_t at = hash_bytes(word.data, word.len, 0) & (counts->num_slots - 1);
    while (counts->slots[at]) {
        Str known = counts->words[counts->slots[at] - 1].word;
        if (str_same(known, word)) break;
        at = (at + 1) & (counts->num_slots - 1);
    }
    return at;
}

static void slots_grow(WordCounts *counts)
{
    counts->num_slots = counts->num_slots ? counts->num_slots * 2 : 1024;
    free(counts->slots);
    counts->slots = calloc_or_end(counts->num_slots, sizeof *counts->slots);
    for (size_t i = 0; i < counts->len; i++) counts->slots[slot_of(counts, counts->words[i].word)] = (uint32_t)i + 1;
}

void word_counts_add(WordCounts *counts, Str word, int64_t count)
{
    if (counts->len * 2 >= counts->num_slots) slots_grow(counts);
    size_t at = slot_of(counts, word);
    if (counts->slots[at]) {
        counts->words[counts->slots[at] - 1].count += count;
        return;
    }
    counts->words = array_room(counts->words, counts->len + 1, &counts->capacity, sizeof *counts->words);
    Str kept = {arena_strndup(&counts->arena, word.data, word.len), word.len};
    counts->words[counts->len++] = (WordCount){kept, count};
    counts->slots[at] = (uint32_t)counts->len;
}

int64_t word_counts_find(const WordCounts *counts, Str word)
{
    if (counts->num_slots == 0) return -1;
    return (int64_t)counts->slots[slot_of(counts, word)] - 1;
}
