/* The workspace of decoding over a cache in pages (attention_pages.cu): plans want to know it without a GPU. */
#pragma once

#include "ops/attrs.h"

#include <stddef.h>

enum { PAGES_TILE = 64 }; /* keys; tiles begin at multiples of it */

/* The most tiles that a query's keys touch, of a row with room for `room` positions. */
static inline int64_t attention_pages_tiles(int64_t window, int64_t room)
{
    int64_t all = (room + PAGES_TILE - 1) / PAGES_TILE, of_window = (window + PAGES_TILE - 2) / PAGES_TILE + 1;
    return window > 0 && of_window < all ? of_window : all;
}

/* What each tile sums up for each row and query head: largest score and total, then dim numbers; f32. */
static inline size_t attention_pages_bytes(int64_t batch, int64_t num_heads, int64_t dim, int64_t tiles)
{
    return (size_t)(batch * num_heads * tiles * (dim + 2)) * sizeof(float);
}
