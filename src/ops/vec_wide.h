/* Sums of rows in AVX-512 registers, with the bits of vec.h's sums. */
#pragma once

#include "ops/vec.h"

#include <immintrin.h>

/* Half 0 or 1 of the lanes. */
VEC_WIDE_ROW Vec8 vec16_half(__m512 v, const int half)
{
    return (Vec8)(half ? _mm512_extractf32x8_ps(v, 1) : _mm512_castps512_ps256(v));
}

/* The sum of vec.h's 4 groups of 8 lanes, which are 2 groups of 16 here. */
VEC_WIDE_ROW float vec16_sum(__m512 first, __m512 second)
{
    return vec8_sum((vec16_half(first, 0) + vec16_half(first, 1)) + (vec16_half(second, 0) + vec16_half(second, 1)));
}
