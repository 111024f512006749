/* What the ops of int8 share, on the CPU and CUDA: codes from -127 to 127 of a matrix with an fp32 scale for each row, w = code * scale,
 * scale = max|row| / 127. */
#pragma once

#include "base/small_float.h"

#include <math.h>

enum { INT8_MOST = 127 };

/* The scale of a row whose largest magnitude (small_magnitude) is `most`; 1 for a row of zeros, or of values too small for a scale. */
SMALL_FN float int8_scale(uint32_t most)
{
    float scale = small_value(most) / INT8_MOST;
    return scale == 0 ? 1 : scale;
}

/* Rounds to nearest, ties to even. In a row with NaN or infinity every code decodes to something that isn't finite: the scale isn't finite,
 * and 0 times it is NaN. */
SMALL_FN int8_t int8_code(float x, float scale)
{
    float steps = x / scale;
    return (int8_t)(steps == steps ? rintf(fminf(fmaxf(steps, -INT8_MOST), INT8_MOST)) : 0);
}
