/* Packing of samples into rows of a fixed length: best fit, longest first. */
#pragma once

#include "base/arena.h"

#include <stdint.h>

/* Rows as lists: row r holds samples items[begin[r]] .. items[begin[r + 1] - 1], longest first. */
typedef struct Packing {
    int64_t  num_rows;
    int64_t *begin; /* (num_rows + 1) */
    int64_t *items; /* (num_samples) */
} Packing;

/* Lengths are in 1..capacity (CHECK). Each sample goes to the fullest row that still takes it; of equally full
 * rows, the one that reached this fullness first. Samples of equal length go in order of index: a pure function of its input.
 * O(n log capacity). *out is on the heap; packing_deinit frees it. */
void pack_best_fit(const int32_t *lengths, int64_t num_samples, int32_t capacity, Packing *out);
void packing_deinit(Packing *packing);
