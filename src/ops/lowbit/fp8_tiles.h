/* What the ops of FP8 with scales of blocks share, on the CPU and CUDA. A matrix in e4m3 codes has an fp32 scale for each tile of FP8_TILE
 * rows and columns, w = code * scale, as in fine-grained FP8 folders; or for each FP8_TILE elements of a row. Blocks at the edges are
 * smaller. */
#pragma once

#include "base/small_float.h"

enum { FP8_TILE = 128 };

/* The scale of a tile whose largest magnitude (small_magnitude) is `most`; 1 for a tile of zeros, or of values too small for a scale. */
SMALL_FN float fp8_tile_scale(uint32_t most)
{
    float scale = small_value(most) / 448;
    return scale == 0 ? 1 : scale;
}

/* In a tile with NaN or infinity every code decodes to something that isn't finite: the scale isn't finite, and 0 times it is NaN. */
SMALL_FN uint32_t fp8_tile_code(float x, float scale)
{
    return small_nearest(small_e4m3(), x / scale);
}

/* The scale of a row's elements; codes are x * (1 / scale). It is at least the smallest normal number, so that its inverse is finite. NaN
 * and infinity stay: they give codes of NaN, or scales that aren't finite. */
SMALL_FN float fp8_row_scale(uint32_t most)
{
    float scale = small_value(most) / 448, least = small_power(-126);
    return scale < least ? least : scale;
}

/* Length of a row of scales for `tiles` tiles side by side, as products want it. */
SMALL_FN int64_t fp8_tiles_stride(int64_t tiles)
{
    return (tiles + 3) / 4 * 4;
}
