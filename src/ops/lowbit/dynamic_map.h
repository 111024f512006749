/* The dynamic 8-bit map (Dettmers 2022, as in bitsandbytes), for the CPU and CUDA: values in [-1, 1], or in [0, 1] for an unsigned map.
 * They form seven decades from 1e-7 to 1, each with twice as many values as the decade below.
 *
 * Magnitudes: first 0; then for each decade i (from 0) the middles of equal parts of [10^(i-7), 10^(i-6)], 2^i of them if signed, else 2^(i
 * + 1); last 1. An unsigned code is the index of its magnitude. A signed code is 127 plus or minus the index: 255 is 1, and there is no -1.
 *
 * The last bits are those that bitsandbytes' map has on CPUs with fused multiply-adds: the same steps, each rounded to fp32. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DYNAMIC_FN static __host__ __device__ inline
#else
#define DYNAMIC_FN static inline
#endif

enum { DYNAMIC_DECADES = 7, DYNAMIC_ZERO = 127 /* the code of 0 in a signed map */, DYNAMIC_MAGNITUDES = 256 };

typedef struct DynamicMap {
    float magnitude[DYNAMIC_MAGNITUDES], middle[DYNAMIC_MAGNITUDES]; /* middle[p]: between magnitudes p and p + 1; inf for the last */
    float low[DYNAMIC_DECADES], per_unit[DYNAMIC_DECADES];           /* where a decade begins; magnitudes per unit of its length */
} DynamicMap;

DYNAMIC_FN float dynamic_decade(int i) /* the end of decade i: the fp32 nearest to 10^(i-6) */
{
    int power = DYNAMIC_DECADES - 1 - i;
    return 1 / ((power & 1 ? 10.0f : 1.0f) * (power & 2 ? 100.0f : 1.0f) * (power & 4 ? 10000.0f : 1.0f));
}

/* floor(log2(x)) of x > 0. */
DYNAMIC_FN int dynamic_log2_of(int x)
{
#ifdef __CUDA_ARCH__
    return 31 - __clz(x);
#else
    return 31 - __builtin_clz((unsigned)x);
#endif
}

/* Where part k of `count` parts of [0.1, 1] begins, computed from the nearer end. */
DYNAMIC_FN float dynamic_boundary(int k, int count)
{
    float step = (1 - 0.1f) / (float)count;
    return k < (count + 1) / 2 ? fmaf(step, (float)k, 0.1f) : fmaf(-step, (float)(count - k), 1);
}

/* Magnitude p. All sums of products are explicit fmas, so that no compiler changes the result by fusing. */
DYNAMIC_FN float dynamic_magnitude(bool is_signed, int p)
{
    if (p == 0) return 0;
    int q = is_signed ? p : p + 1, log = dynamic_log2_of(q), i = is_signed ? log : log - 1, count = 1 << log;
    if (i == DYNAMIC_DECADES) return 1;
    return dynamic_decade(i) * (0.5f * (dynamic_boundary(q - count, count) + dynamic_boundary(q - count + 1, count)));
}

/* The index of magnitude 1. */
DYNAMIC_FN int dynamic_last(bool is_signed)
{
    return is_signed ? 128 : 255;
}

/* Fills entry p of the tables; to be called once for each p in [0, DYNAMIC_MAGNITUDES), by any number of threads. */
DYNAMIC_FN void dynamic_map_entry(DynamicMap *map, bool is_signed, int p)
{
    int last = dynamic_last(is_signed);
    map->magnitude[p] = p <= last ? dynamic_magnitude(is_signed, p) : 1;
    map->middle[p] = p < last ? 0.5f * (dynamic_magnitude(is_signed, p) + dynamic_magnitude(is_signed, p + 1)) : INFINITY;
    if (p >= DYNAMIC_DECADES) return;
    map->low[p] = 0.1f * dynamic_decade(p);
    map->per_unit[p] = (float)(is_signed ? 1 << p : 2 << p) / (0.9f * dynamic_decade(p));
}

DYNAMIC_FN void dynamic_map_fill(DynamicMap *map, bool is_signed)
{
    for (int p = 0; p < DYNAMIC_MAGNITUDES; p++) dynamic_map_entry(map, is_signed, p);
}

DYNAMIC_FN float dynamic_value(const DynamicMap *map, bool is_signed, int code)
{
    if (!is_signed) return map->magnitude[code];
    int p = code - DYNAMIC_ZERO;
    return p < 0 ? -map->magnitude[-p] : map->magnitude[p];
}

DYNAMIC_FN float dynamic_log2(float x) /* approximate */
{
#ifdef __CUDA_ARCH__
    return __log2f(x);
#else
    return log2f(x);
#endif
}

/* The code of the value nearest to x; of two equally near values, of the one nearer to 0. NaN has the code of 0. The logarithm finds the
 * decade and a product the place in it, at most one magnitude off, whatever their last bits are; two comparisons then decide. */
DYNAMIC_FN int dynamic_nearest(const DynamicMap *map, bool is_signed, float x)
{
    float size = fabsf(x), decade = floorf(dynamic_log2(size) * 0.30103f + (float)DYNAMIC_DECADES);
    int   i = (int)fminf(fmaxf(decade, 0.0f), (float)(DYNAMIC_DECADES - 1)), before = is_signed ? 1 << i : (2 << i) - 1;
    float place = floorf((size - map->low[i]) * map->per_unit[i]) + (float)before;
    int   p = (int)fminf(fmaxf(place, 0.0f), (float)dynamic_last(is_signed));
    p += (size > map->middle[p]) - (p > 0 && size <= map->middle[p > 0 ? p - 1 : 0]);
    if (!is_signed) return p;
    return x < 0 ? DYNAMIC_ZERO - (p < DYNAMIC_ZERO ? p : DYNAMIC_ZERO) : DYNAMIC_ZERO + p;
}

/* Encodes a block; returns its scale, the largest magnitude. A block of zeros has scale 0. */
DYNAMIC_FN float dynamic_encode(const DynamicMap *map, bool is_signed, const float *values, int64_t count, uint8_t *codes)
{
    float most = 0;
    for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(values[i]));
    for (int64_t i = 0; i < count; i++) codes[i] = (uint8_t)dynamic_nearest(map, is_signed, values[i] * (1 / most));
    return most;
}

DYNAMIC_FN void dynamic_decode(const DynamicMap *map, bool is_signed, const uint8_t *codes, float scale, int64_t count, float *values)
{
    for (int64_t i = 0; i < count; i++) values[i] = dynamic_value(map, is_signed, codes[i]) * scale;
}
