/* Learning merges from counted words. */
#pragma once

#include "text/bpe_words.h"

typedef struct LearnedMerge {
    int32_t left, right, id;
} LearnedMerge;

typedef struct LearnedMerges {
    LearnedMerge *data;
    size_t        len, capacity;
} LearnedMerges;

/* Adds merges until `tokens` holds vocab_size texts or no pair is as frequent as min_frequency. tokens: the vocabulary
 * so far, in id order; the merged tokens are added to it. byte_ids: id of each byte's token. words: raw bytes. */
void bpe_learn(const WordCounts *words, const int32_t byte_ids[256], int64_t vocab_size, int64_t min_frequency, WordCounts *tokens,
               LearnedMerges *out);
