/* Floats of 8 and 4 bits, described by their fields. CPU and CUDA use the same operations, so that they compute the same codes. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define SMALL_FN static __host__ __device__ __forceinline__
#else
#define SMALL_FN static inline __attribute__((always_inline))
#endif

typedef struct SmallFloat {
    int      bits, mantissa, bias;
    uint32_t largest, infinity, nan; /* codes without the sign bit; infinity, nan: 0 if the format has none */
} SmallFloat;

SMALL_FN SmallFloat small_e4m3(void)
{
    SmallFloat format = {8, 3, 7, 0x7E, 0, 0x7F};
    return format;
}

SMALL_FN SmallFloat small_e5m2(void)
{
    SmallFloat format = {8, 2, 15, 0x7B, 0x7C, 0x7E};
    return format;
}

SMALL_FN SmallFloat small_e2m1(void)
{
    SmallFloat format = {4, 1, 1, 0x7, 0, 0};
    return format;
}

SMALL_FN uint32_t small_bits(float value)
{
    union {
        float    value;
        uint32_t bits;
    } word = {value};
    return word.bits;
}

/* The bits of |x|, which compare as the magnitudes do: infinity is above all finite values, NaN above infinity. */
SMALL_FN uint32_t small_magnitude(float x)
{
    return small_bits(x) & 0x7FFFFFFFu;
}

SMALL_FN float small_value(uint32_t bits)
{
    union {
        uint32_t bits;
        float    value;
    } word = {bits};
    return word.value;
}

/* 2^exponent, which must be a normal float. */
SMALL_FN float small_power(int exponent)
{
    return small_value((uint32_t)(127 + exponent) << 23);
}

enum { SMALL_INFINITY = 0x7F800000 }; /* the magnitude of infinity */

/* The code, without sign, of a magnitude that isn't finite. A format without infinity uses NaN for it; a format with neither uses its
 * largest value for infinity and 0 for NaN. */
SMALL_FN uint32_t small_special(SmallFloat f, uint32_t magnitude)
{
    if (magnitude > SMALL_INFINITY) return f.nan;
    return f.infinity ? f.infinity : f.nan ? f.nan : f.largest;
}

/* The bits (as a float) of the smallest normal value. Values below it are spaced evenly, by 2^(1 - bias - mantissa). */
SMALL_FN uint32_t small_least(SmallFloat f)
{
    return (uint32_t)(128 - f.bias) << 23;
}

/* Adds the sign of the float `word` to the magnitude `code`, and handles values that are out of range or not finite. */
SMALL_FN uint32_t small_join(SmallFloat f, uint32_t word, uint32_t code)
{
    uint32_t magnitude = word & 0x7FFFFFFFu, sign = word >> 31 << (f.bits - 1);
    if (!f.nan && magnitude > SMALL_INFINITY) return 0;
    code = code > f.largest ? f.largest : code;
    return sign | (magnitude < SMALL_INFINITY ? code : small_special(f, magnitude));
}

/* The code of the nearest value, ties to even. Finite values beyond the format's largest value get the code of the largest value. */
SMALL_FN uint32_t small_nearest(SmallFloat f, float value)
{
    uint32_t word = small_bits(value), magnitude = small_magnitude(value);
    int      cut = 23 - f.mantissa;
    /* For subnormals: adding 2^23 steps makes float addition round to whole steps; their count is in the low bits. */
    uint32_t steps = (uint32_t)(127 + 23 + 1 - f.bias - f.mantissa) << 23;
    uint32_t subnormal = small_bits(small_value(magnitude) + small_value(steps)) - steps;
    uint32_t normal = (magnitude - ((uint32_t)(127 - f.bias) << 23) + (1u << (cut - 1)) - 1 + (magnitude >> cut & 1)) >> cut;
    return small_join(f, word, magnitude < small_least(f) ? subnormal : normal);
}

/* Stochastic rounding to one of the two codes around `value`. The one of larger magnitude is chosen with a probability equal to the
 * distance from the lower one in steps, to within 1/65,536. `random`: 16 bits. Exactly representable values don't change. */
SMALL_FN uint32_t small_stochastic(SmallFloat f, float value, uint32_t random)
{
    uint32_t word = small_bits(value), magnitude = small_magnitude(value), more = 2 * random + 1; /* more: in units of 2^-17 of a step */
    int      cut = 23 - f.mantissa;
    float    inside = magnitude < small_least(f) ? small_value(magnitude) : 0;
    uint32_t subnormal = ((uint32_t)(inside * small_power(16 + f.bias + f.mantissa)) + more) >> 17;
    uint32_t normal = (magnitude - ((uint32_t)(127 - f.bias) << 23) + (more << (cut - 17))) >> cut;
    return small_join(f, word, magnitude < small_least(f) ? subnormal : normal);
}

SMALL_FN float small_decode(SmallFloat f, uint32_t code)
{
    uint32_t magnitude = code & ((1u << (f.bits - 1)) - 1), sign = code >> (f.bits - 1) << 31, fields = magnitude << (23 - f.mantissa);
    uint32_t normal = fields + ((uint32_t)(127 - f.bias) << 23);
    uint32_t subnormal = small_bits(small_value(fields + small_least(f)) - small_value(small_least(f)));
    uint32_t special = magnitude == f.infinity ? (uint32_t)SMALL_INFINITY : 0x7FC00000u;
    return small_value(sign | (magnitude > f.largest ? special : magnitude >> f.mantissa ? normal : subnormal));
}
