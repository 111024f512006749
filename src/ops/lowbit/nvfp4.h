/* What nvfp4_quantise and nvfp4_dequantise share, on the CPU and CUDA: NVFP4 (arXiv 2509.25149), x ~ e2m1 * scale * global, with an e4m3
 * scale for each NVFP4_BLOCK elements along a row and one fp32 factor for the tensor:
 *
 *     global = max|x| / (448 * 6)      scale = e4m3(max|x of the block| / 6 / global)      code = e2m1(x * (1 / global / scale))
 *
 * Each step is rounded to fp32, as in torchao. A compiler that fuses multiply-adds changes no result. */
#pragma once

#include "base/nvfp4_tiles.h"

#include <math.h>
#include <stdbool.h>

/* ---- scales, from magnitudes (small_magnitude) ---- */

/* The tensor's factor. Four over six needs scales up to 1.5 times those of the paper, so it limits them to 256 instead of 448. Tensors of
 * zeros, or nearly, have 2^-100, so that no reciprocal overflows. A tensor with NaN or infinity has NaN or infinity, so that no code
 * decodes to a finite value. */
SMALL_FN float nvfp4_global(uint32_t most, bool four_six)
{
    float global = small_value(most) / (four_six ? 256.0f * 6 : 448.0f * 6);
    return global < 0x1p-100f ? 0x1p-100f : global;
}

/* The code of a block's scale, if the block's largest magnitude `most` is to become `top`: 6 or 4. */
SMALL_FN uint32_t nvfp4_scale_code(uint32_t most, float top, float global)
{
    return small_nearest(small_e4m3(), small_value(most) / top / global);
}

SMALL_FN float nvfp4_scale(uint32_t code)
{
    return small_decode(small_e4m3(), code);
}

/* The factor that x is multiplied by to get codes. A block whose scale is 0 has codes 0. */
SMALL_FN float nvfp4_inverse(float global, float scale)
{
    return scale == 0 ? 0 : 1 / global / scale;
}

SMALL_FN uint32_t nvfp4_code(float x, float inverse)
{
    return small_nearest(small_e2m1(), x * inverse);
}

/* The value of a code. Code times scale is exact. */
SMALL_FN float nvfp4_value(uint32_t code, float scale, float global)
{
    return small_decode(small_e2m1(), code) * scale * global;
}

/* ---- four over six: of a block's scales for 6 and for 4 takes the one with the smaller squared error; of equal ones the scale for 6
 * ---- */

/* The factor by which an error as large as the block's largest element becomes 2^28. */
SMALL_FN float nvfp4_error_unit(uint32_t most, float global)
{
    return most ? 0x1p28f / (small_value(most) * (1 / global)) : 0;
}

/* The squared error of an element; inverse: nvfp4_inverse of the scale. Errors are whole numbers, so that the sum over a block doesn't
 * depend on the order: a weight and its transpose make the same choice. */
SMALL_FN uint64_t nvfp4_error(float x, float global, float scale, float inverse, float unit)
{
    float   value = small_decode(small_e2m1(), nvfp4_code(x, inverse)) * scale;
    float   error = fmaf(-x, 1 / global, value) * unit;
    int64_t whole = (int32_t)fminf(fmaxf(error, -0x1p30f), 0x1p30f);
    return (uint64_t)(whole * whole);
}

/* ---- random Hadamard transform: H S / 4 of a block, where S is fixed random signs ---- */

SMALL_FN float nvfp4_signed(float x, int i)
{
    return 0x9E37 >> i & 1 ? -x : x;
}

/* The Hadamard transform of 8 values, in place. */
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

/* The last step of the transform of 16 values from two transforms of 8: a value of the first or the second half. */
SMALL_FN float nvfp4_hadamard_join(float first, float second, bool is_second)
{
    return (is_second ? first - second : first + second) * 0.25f;
}
