/* Transposes 16 x 16 words in registers of AVX-512. */
#pragma once

#include <immintrin.h>

enum { TURN16 = 16 };

/* Column i of 16 x 16 becomes row i. */
__attribute__((target("avx512f"))) static inline __attribute__((always_inline)) void turn16(__m512i x[TURN16])
{
    __m512i y[TURN16];
#pragma GCC unroll 16
    for (int i = 0; i < TURN16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < TURN16; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + j + 2]);
            x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + j + 2]);
        }
#pragma GCC unroll 16
    for (int i = 0; i < TURN16; i += 8)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            y[i + j] = _mm512_shuffle_i32x4(x[i + j], x[i + j + 4], 0x88);
            y[i + j + 4] = _mm512_shuffle_i32x4(x[i + j], x[i + j + 4], 0xdd);
        }
#pragma GCC unroll 16
    for (int j = 0; j < 8; j++) {
        x[j] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0x88);
        x[j + 8] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0xdd);
    }
}
