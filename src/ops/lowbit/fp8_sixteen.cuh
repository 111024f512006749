/* For kernels of FP8 codes on CUDA whose threads take 16 elements of a row: two or four packs of x, one of codes. */
#pragma once

#include "device/cuda/fp8.cuh"

enum { COLS = 16, WORDS = COLS / 4 };

/* One row of the thread's part of x, as stored. */
template <typename T> struct Row {
    enum { N = Pack<T>::N };
    Pack<T> packs[COLS / N];

    __device__ __forceinline__ float get(int i) const
    {
        return to_float(packs[i / N].v[i % N]);
    }
};

/* WHOLE: cols is a multiple of 16, and x is aligned. Beyond the last row or column it loads the last ones again: without branches all loads
 * are in flight at once, and the largest magnitude stays the same. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ Row<T> load_row(const T *x, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    enum { N = Row<T>::N };
    Row<T> out;
    x += min(row, rows - 1) * cols;
#pragma unroll
    for (int p = 0; p < COLS / N; p++) {
        if (WHOLE)
            out.packs[p].words = *reinterpret_cast<const uint4 *>(x + min(col, cols - COLS) + p * N);
        else
#pragma unroll
            for (int i = 0; i < N; i++) out.packs[p].v[i] = x[min(col + p * N + i, cols - 1)];
    }
    return out;
}

/* Stores the first `count` of 16 codes; all of them if WHOLE. */
template <bool WHOLE> static __device__ __forceinline__ void store_codes(uint8_t *codes, int64_t count, const uint32_t *words)
{
    if (WHOLE) {
        *reinterpret_cast<uint4 *>(codes) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
#pragma unroll
        for (int i = 0; i < COLS; i++)
            if (i < count) codes[i] = (uint8_t)(words[i / 4] >> (8 * (i % 4)));
    }
}
