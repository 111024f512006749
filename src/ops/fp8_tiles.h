/* What fp8_tiles_quantise and fp8_tiles_dequantise share, on the CPU and CUDA: e4m3 codes of a matrix with an fp32 scale for each tile
 * of FP8_TILE rows and columns, w = code * scale, as fine-grained FP8 folders have them. Tiles at the edges are smaller. */
#pragma once

#include "base/small_float.h"

enum { FP8_TILE = 128 };

/* The scale of a tile whose largest magnitude, as bits of a float, is `most`: NaN is above all others, so that a tile keeps it. A tile
 * of zeros, or of what is too small for a scale, has 1. */
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
