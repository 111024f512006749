/* Layouts of the scales of NVFP4 blocks: row-major, or in tiles as tensor cores read them. A tile holds the scales of 128 rows x 4 blocks;
 * in it, rows with equal r % 32 are adjacent. Tiles are row-major. Padding in the last tiles has scales of 0. */
#pragma once

#include "base/small_float.h"

#include <stdbool.h>

enum { NVFP4_BLOCK = 16 }; /* elements along a row that share a scale */
enum { NVFP4_TILE_ROWS = 128, NVFP4_TILE_BLOCKS = 4, NVFP4_TILE_BYTES = NVFP4_TILE_ROWS * NVFP4_TILE_BLOCKS };

SMALL_FN int64_t nvfp4_tiles(int64_t count, int64_t of)
{
    return (count + of - 1) / of;
}

/* The index of the scale of (row, block), in a tensor with `blocks` blocks per row. */
SMALL_FN int64_t nvfp4_scale_at(int64_t row, int64_t block, int64_t blocks, bool tiled)
{
    if (!tiled) return row * blocks + block;
    int64_t tile = row / NVFP4_TILE_ROWS * nvfp4_tiles(blocks, NVFP4_TILE_BLOCKS) + block / NVFP4_TILE_BLOCKS;
    int64_t in_tile = row % 32 * 16 + row % NVFP4_TILE_ROWS / 32 * NVFP4_TILE_BLOCKS + block % NVFP4_TILE_BLOCKS;
    return tile * NVFP4_TILE_BYTES + in_tile;
}
