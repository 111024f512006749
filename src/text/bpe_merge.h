/* Learns BPE merges from counted words. */
#pragma once

#include "text/bpe_words.h"

typedef struct LearnedMerge {
    int32_t left, right;
} LearnedMerge;

typedef struct LearnedMerges {
    LearnedMerge *data;
    size_t        len, capacity;
} LearnedMerges;

/* Appends merges to *out until `tokens` has vocab_size entries or no pair occurs min_frequency times. tokens: the vocabulary in id order;
 * merged tokens are appended. byte_ids: the ids of the single bytes. words: as raw bytes. */
void bpe_learn(const WordCounts *words, const int32_t byte_ids[256], int64_t vocab_size, int64_t min_frequency, WordCounts *tokens,
               LearnedMerges *out);
