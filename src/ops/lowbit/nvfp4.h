/* What nvfp4_quantise and nvfp4_dequantise share, on the CPU and CUDA: NVFP4 (arXiv 2509.25149), x ~ e2m1 * scale * global, with an
 * e4m3 scale for each NVFP4_BLOCK elements along a row and one fp32 number for the tensor:
 *
 *     global = max|x| / (448 * 6)      scale = e4m3(max|x of the block| / 6 / global)      code = e2m1(x * (1 / global / scale))
 *
 * Each step is rounded to fp32, as in torchao. A compiler that fuses products with sums changes none of it. */
#pragma once

#include "base/nvfp4_tiles.h"

#include <math.h>
#include <stdbool.h>

/* ---- scales, from magnitudes (small_magnitude) ---- */

/* Four over six wants scales of up to 1.5 times those of the paper, and so has smaller ones. Tensors of zeros, or nearly, have 2^-100, for
 * which no reciprocal overflows. One with NaN or infinity has NaN or infinity: nothing of it is taken for a number again. */
SMALL_FN float nvfp4_global(uint32_t most, bool four_six)
{
    float global = small_value(most) / (four_six ? 256.0f * 6 : 448.0f * 6);
    return global < 0x1p-100f ? 0x1p-100f : global;
}

/* The code of the scale that a block whose largest magnitude is `most` has when that becomes `top`: 6, or 4. */
SMALL_FN uint32_t nvfp4_scale_code(uint32_t most, float top, float global)
{
    return small_nearest(small_e4m3(), small_value(most) / top / global);
}

SMALL_FN float nvfp4_scale(uint32_t code)
{
    return small_decode(small_e4m3(), code);
}

/* What x is multiplied by. The codes of a block whose scale is 0 are 0. */
SMALL_FN float nvfp4_inverse(float global, float scale)
{
    return scale == 0 ? 0 : 1 / global / scale;
}

SMALL_FN uint32_t nvfp4_code(float x, float inverse)
{
    return small_nearest(small_e2m1(), x * inverse);
}

/* The product of code and scale is exact. */
SMALL_FN float nvfp4_value(uint32_t code, float scale, float global)
{
    return small_decode(small_e2m1(), code) * scale * global;
}

/* ---- four over six: of the scales for 6 and for 4 the one with the smaller squared error, of two alike that for 6 ---- */

/* What makes an error of the size of a block's largest element 2^28. */
SMALL_FN float nvfp4_error_unit(uint32_t most, float global)
{
    return most ? 0x1p28f / (small_value(most) * (1 / global)) : 0;
}

/* The squared error of an element; inverse: of the scale. It is a whole number, so that the sum over a block is the same in any order:
 * that of a weight and of its transpose make the same choice. */
SMALL_FN uint64_t nvfp4_error(float x, float global, float scale, float inverse, float unit)
{
    float   value = small_decode(small_e2m1(), nvfp4_code(x, inverse)) * scale;
    float   error = fmaf(-x, 1 / global, value) * unit;
    int64_t whole = (int32_t)fminf(fmaxf(error, -0x1p30f), 0x1p30f);
    return (uint64_t)(whole * whole);
}

/* ---- random Hadamard transform: H S / 4 of a block, S fixed random signs ---- */

SMALL_FN float nvfp4_signed(float x, int i)
{
    return 0x9E37 >> i & 1 ? -x : x;
}

/* H of 8 values in place. */
SMALL_FN void nvfp4_hadamard8(float *v)
{
    for (int stride = 1; stride < 8; stride *= 2)
        for (int i = 0; i < 8; i++) {
            if (i & stride) continue;
            float a = v[i], b = v[i + stride];
            v[i] = a + b;
            v[i + stride] = a - b;
        }
}

/* The last step of 16 values from two times 8: value i of the first or the second half. */
SMALL_FN float nvfp4_hadamard_join(float first, float second, bool is_second)
{
    return (is_second ? first - second : first + second) * 0.25f;
}
