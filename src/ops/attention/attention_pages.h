/* The workspace of decoding over a cache in pages (attention_pages.cu). It is here because plans compute it without a GPU. */
#pragma once

#include "ops/attrs.h"

#include <stddef.h>

enum { PAGES_TILE = 64 }; /* keys of a tile; a tile begins at a multiple of this */

/* The most tiles that one query's keys touch. window: 0: none; room: positions that the row may have. */
static inline int64_t attention_pages_tiles(int64_t window, int64_t room)
{
    int64_t all = (room + PAGES_TILE - 1) / PAGES_TILE, of_window = (window + PAGES_TILE - 2) / PAGES_TILE + 1;
    return window > 0 && of_window < all ? of_window : all;
}

/* Bytes of all tiles' sums, f32: per row, query head and tile the largest score, the sum of exponentials, and `dim` sums of values. */
static inline size_t attention_pages_bytes(int64_t batch, int64_t num_heads, int64_t dim, int64_t tiles)
{
    return (size_t)(batch * num_heads * tiles * (dim + 2)) * sizeof(float);
}
