/* Random numbers for ops under test, beside op_draw. */
#pragma once

#include "base/philox.h"
#include "ops/infer.h"

/* Element `index` of the sequence of normal random numbers with this key. */
static double draw_normal(uint64_t key, uint32_t index)
{
    Philox4 draw = philox4x32(index, 0, 0, 0, key);
    double  u = ((double)draw.v[0] + 0.5) / 4294967296.0, phase = (double)draw.v[1] / 4294967296.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * phase);
}
