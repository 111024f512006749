/* What the ops of FP8 with scales of blocks share, on the CPU and CUDA: e4m3 codes of a matrix with an fp32 scale for each tile of
 * FP8_TILE rows and columns, w = code * scale, as fine-grained FP8 folders have them, or for each FP8_TILE numbers of a row. Blocks at
 * the edges are smaller. */
#pragma once

#include "base/small_float.h"

enum { FP8_TILE = 128 };

/* The scale of a tile whose largest magnitude (small_magnitude) is `most`. A tile of zeros, or of what is too small for a scale, has 1. */
SMALL_FN float fp8_tile_scale(uint32_t most)
{
    float scale = small_value(most) / 448;
    return scale == 0 ? 1 : scale;
}

/* Of a tile with NaN or infinity no code is taken for a number: its scale isn't finite, and 0 times it is NaN. */
SMALL_FN uint32_t fp8_tile_code(float x, float scale)
{
    return small_nearest(small_e4m3(), x / scale);
}

/* The scale of numbers of a row; codes are x * (1 / scale). It is a normal number, so that its inverse is finite; NaN and infinity stay,
 * and make codes of NaN or scales that aren't finite. */
SMALL_FN float fp8_row_scale(uint32_t most)
{
    float scale = small_value(most) / 448, least = small_power(-126);
    return scale < least ? least : scale;
}

/* Columns that products want of the scales of so many tiles beside each other. */
SMALL_FN int64_t fp8_tiles_stride(int64_t tiles)
{
    return (tiles + 3) / 4 * 4;
}
