/* Philox4x32-10 of consecutive counters, eight at a time on the CPU: the words of philox4x32, in the same order. */
#pragma once

#include "ops/random.h"
#include "ops/vec.h"

#include <immintrin.h>

enum { RANDOM_GROUP = 32 }; /* words that are made together */

/* Four counters, one 32-bit word in the low half of each 64-bit lane. The high halves hold anything, as products don't read them. */
typedef struct PhiloxLanes {
    __m256i c0, c1, c2, c3;
} PhiloxLanes;

static inline void philox_lanes_round(PhiloxLanes *s, __m256i k0, __m256i k1)
{
    __m256i p0 = _mm256_mul_epu32(s->c0, _mm256_set1_epi64x(0xD2511F53)), p1 = _mm256_mul_epu32(s->c2, _mm256_set1_epi64x(0xCD9E8D57));
    s->c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), s->c1), k0);
    s->c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), s->c3), k1);
    s->c1 = p1;
    s->c3 = p0;
}

/* Stores 16 words: four of the first counter, then four of each next one. */
static inline void philox_lanes_store(uint32_t *out, const PhiloxLanes *s)
{
    __m256i first = _mm256_blend_epi32(s->c0, _mm256_slli_epi64(s->c1, 32), 0xAA);
    __m256i second = _mm256_blend_epi32(s->c2, _mm256_slli_epi64(s->c3, 32), 0xAA);
    __m256i even = _mm256_unpacklo_epi64(first, second), odd = _mm256_unpackhi_epi64(first, second); /* counters 0 2, 1 3 */
    _mm256_storeu_si256((__m256i *)out, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256((__m256i *)(out + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}

/* random_row with eight counters in AVX-512 registers. */
VEC_WIDE static void random_row_wide(uint32_t *out, uint64_t key, uint32_t first, uint32_t c1, uint32_t c2, int64_t count)
{
    const __m512i first_half = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), last_half = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m2 = _mm512_set1_epi64(0xCD9E8D57),
                  numbers = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    for (int64_t i = 0; i < count; i += RANDOM_GROUP) {
        __m512i  x0 = _mm512_add_epi64(_mm512_set1_epi64((int64_t)first + i / 4), numbers), x1 = _mm512_set1_epi64(c1);
        __m512i  x2 = _mm512_set1_epi64(c2), x3 = _mm512_setzero_si512();
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            __m512i p0 = _mm512_mul_epu32(x0, m0), p2 = _mm512_mul_epu32(x2, m2);
            x0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p2, 32), x1, _mm512_set1_epi64(k0), 0x96); /* the xor of all three */
            x2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), x3, _mm512_set1_epi64(k1), 0x96);
            x1 = p2;
            x3 = p0;
        }
        __m512i low = _mm512_mask_blend_epi32(0xAAAA, x0, _mm512_slli_epi64(x1, 32));
        __m512i high = _mm512_mask_blend_epi32(0xAAAA, x2, _mm512_slli_epi64(x3, 32));
        __m512i even = _mm512_unpacklo_epi64(low, high), odd = _mm512_unpackhi_epi64(low, high); /* counters 0 2 4 6, 1 3 5 7 */
        _mm512_storeu_si512(out + i, _mm512_permutex2var_epi64(even, first_half, odd));
        _mm512_storeu_si512(out + i + 16, _mm512_permutex2var_epi64(even, last_half, odd));
    }
}

/* Writes the words of draws (first, c1, c2, 0), (first + 1, c1, c2, 0), ...: at least `count` words, in groups of RANDOM_GROUP; `out` has
 * room for whole groups. */
static inline void random_row(uint32_t *out, uint64_t key, uint32_t first, uint32_t c1, uint32_t c2, int64_t count)
{
    if (cpu_avx512()) {
        random_row_wide(out, key, first, c1, c2, count);
        return;
    }
    for (int64_t i = 0; i < count; i += RANDOM_GROUP) {
        __m256i     begin = _mm256_add_epi64(_mm256_set1_epi64x((int64_t)first + i / 4), _mm256_setr_epi64x(0, 1, 2, 3));
        PhiloxLanes a = {begin, _mm256_set1_epi64x(c1), _mm256_set1_epi64x(c2), _mm256_setzero_si256()}, b = a;
        b.c0 = _mm256_add_epi64(begin, _mm256_set1_epi64x(4));
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            philox_lanes_round(&a, _mm256_set1_epi64x(k0), _mm256_set1_epi64x(k1));
            philox_lanes_round(&b, _mm256_set1_epi64x(k0), _mm256_set1_epi64x(k1));
        }
        philox_lanes_store(out + i, &a);
        philox_lanes_store(out + i + 16, &b);
    }
}
