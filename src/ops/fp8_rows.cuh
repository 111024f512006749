/* Rows as e4m3 codes with a scale for each FP8_TILE numbers of a row, on CUDA, in kernels whose threads hold 16 bytes of a row each: the
 * FP8_TILE numbers are those of threads beside each other, all of them there. */
#pragma once

#include "device/cuda/fp8.cuh"
#include "ops/fp8_tiles.h"

typedef struct RowCodes {
    uint8_t *codes;
    float   *scales; /* each NULL: not wanted */
    int64_t  rows, cols;
} RowCodes;

/* Outputs `first` and the one after it. */
static inline RowCodes row_codes(const KernelArgs *args, int first, int64_t rows, int64_t cols)
{
    RowCodes q = {(uint8_t *)args->out[first].data, (float *)args->out[first + 1].data, rows, cols};
    return q;
}

static inline bool row_codes_wanted(const RowCodes *q)
{
    return q->codes || q->scales;
}

/* The largest of THREADS threads beside each other, which are a part of a warp. */
template <int THREADS> static __device__ __forceinline__ uint32_t most_of(uint32_t most)
{
    unsigned lane = threadIdx.x % 32, mask = THREADS == 32 ? 0xFFFFFFFFu : ((1u << THREADS % 32) - 1) << (lane / THREADS * THREADS);
#pragma unroll
    for (int apart = THREADS / 2; apart; apart /= 2) most = max(most, __shfl_xor_sync(mask, most, apart));
    return most;
}

/* The codes of this thread's numbers, as T has them; the first is at `col` of the row. */
template <typename T>
static __device__ __forceinline__ void store_row_codes(const RowCodes &q, const Pack<T> &pack, int64_t row, int64_t col)
{
    enum { N = Pack<T>::N, WORDS = N / 4 };
    float    v[N];
    uint32_t most = 0, words[WORDS];
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] = to_float(pack.v[i]);
        most = max(most, small_magnitude(v[i]));
    }
    float scale = fp8_row_scale(most_of<FP8_TILE / N>(most)), inverse = 1 / scale;
    if (q.scales && col % FP8_TILE == 0) q.scales[col / FP8_TILE * q.rows + row] = scale;
    if (!q.codes) return;
#pragma unroll
    for (int i = 0; i < N; i++) v[i] *= inverse;
#pragma unroll
    for (int w = 0; w < WORDS; w++) words[w] = fp8_encode4(v + 4 * w, DT_E4M3);
    uint32_t *codes = (uint32_t *)(q.codes + row * q.cols + col);
    if (WORDS == 2)
        *(uint2 *)codes = make_uint2(words[0], words[WORDS - 1]);
    else
        *codes = words[0];
}

/* What this thread makes of a row, from `col` on: to y (NULL: not wanted) and, with CODES, to its codes. */
template <bool CODES, typename T>
static __device__ __forceinline__ void store_result(T *y, const float *v, const RowCodes &q, int64_t row, int64_t col)
{
    Pack<T> pack = to_pack<T>(v);
    if (y) *reinterpret_cast<uint4 *>(y + row * q.cols + col) = pack.words;
    if (CODES) store_row_codes(q, pack, row, col);
}
