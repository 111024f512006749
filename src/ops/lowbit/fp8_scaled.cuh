/* Codes under one scale on CUDA, in the tensor's layout and transposed, for fp8_quantise and for kernels that compute the elements. Such a
 * kernel gives a thread block of SCALED_THREADS a tile of SCALED_ROWS rows, a thread 4 of these rows and PER columns. Transposed codes go
 * through shared memory, where a word has one column's codes of 4 rows, so that they are stored 128 bytes in a row. */
#pragma once

#include "device/cuda/fp8.cuh"
#include "ops/attrs.h"
#include "ops/lowbit/fp8.h"

enum { SCALED_ROWS = 128, SCALED_THREADS = 256, SCALED_EACH = 4, SCALED_GROUPS = 8, SCALED_BANDS = SCALED_ROWS / SCALED_EACH };

typedef struct ScaledCodes {
    uint8_t     *codes, *codes_t; /* NULL: not wanted */
    unsigned    *amax;            /* bits of a non-negative float; NULL: not wanted */
    const float *scale;           /* NULL: codes don't have one scale for all */
    int          format;
    bool         whole_t; /* rows of codes_t consist of whole, aligned packs of 16 */
    int64_t      rows, cols;
} ScaledCodes;

/* The codes that are outputs from `first` on. scale: index of the input that is the scale; format: the attribute. */
static inline ScaledCodes scaled_codes(const KernelArgs *args, int first, int scale, int64_t format, int64_t rows, int64_t cols)
{
    ScaledCodes q = {};
    q.codes = (uint8_t *)args->out[first].data;
    q.scale = (const float *)args->in[scale].data;
    q.rows = rows, q.cols = cols;
    if (!q.scale) return q;
    q.codes_t = (uint8_t *)args->out[first + 1].data;
    q.amax = (unsigned *)args->out[first + 2].data;
    q.format = fp8_dtype(format);
    q.whole_t = rows % 16 == 0 && ((uintptr_t)q.codes_t & 15) == 0;
    return q;
}

/* *blocks: thread blocks, for tiles of `per` columns for each thread; *across: tiles side by side. */
static inline Status scaled_grid(int64_t rows, int64_t cols, int64_t per, unsigned *blocks, unsigned *across)
{
    int64_t beside = cuda_div_up(cols, SCALED_GROUPS * per), all = cuda_div_up(rows, SCALED_ROWS) * beside;
    FAIL_IF(all > INT32_MAX, ERR_UNSUPPORTED, "codes under one scale are made of at most %lld numbers, not of %lld x %lld",
            (long long)INT32_MAX * SCALED_ROWS * SCALED_GROUPS * per, (long long)rows, (long long)cols);
    *blocks = (unsigned)all;
    *across = (unsigned)beside;
    return OK;
}

static inline bool scaled_codes_wanted(const ScaledCodes *q)
{
    return q->scale && (q->codes || q->codes_t || q->amax);
}

/* Encodes N elements. Returns the largest finite magnitude. */
template <int N> static __device__ __forceinline__ uint32_t encode_scaled(const float *v, float factor, int format, uint32_t *words)
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < N; i++) most = max(most, small_magnitude(v[i]));
#pragma unroll
    for (int w = 0; w < N / 4; w++) {
        float scaled[4];
#pragma unroll
        for (int i = 0; i < 4; i++) scaled[i] = v[4 * w + i] * factor;
        words[w] = fp8_encode4(scaled, format);
    }
    if (most < FP8_INFINITE) return most;
    most = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t magnitude = small_magnitude(v[i]), shift = 8 * (i % 4);
        if (magnitude < FP8_INFINITE)
            most = max(most, magnitude);
        else
            words[i / 4] = (words[i / 4] & ~(0xFFu << shift)) | fp8_nan((DType)format) << shift;
    }
    return most;
}

/* Stores one word or two, at an address aligned to them. */
template <int N> static __device__ __forceinline__ void store_words(void *to, const uint32_t *words)
{
    if (N == 2)
        *(uint2 *)to = make_uint2(words[0], words[N - 1]);
    else
        *(uint32_t *)to = words[0];
}

/* ---- the largest magnitude: it doesn't depend on the order in which blocks report theirs ---- */

/* The amax before a block's work is a lower bound: blocks that find nothing larger report nothing. Read by the first thread only. */
static __device__ __forceinline__ unsigned seen_most(const ScaledCodes &q)
{
    return q.amax && threadIdx.x == 0 ? *(volatile unsigned *)q.amax : 0;
}

/* Reports the largest magnitude of the block's threads (whole warps), all of which call it once. */
static __device__ __forceinline__ void record_most(const ScaledCodes &q, uint32_t most, unsigned seen)
{
    __shared__ uint32_t largest[32];
    if (!q.amax) return;
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x) return;
    for (unsigned i = 1; i < blockDim.x / 32; i++) most = max(most, largest[i]);
    if (most > seen) atomicMax(q.amax, most);
}

/* ---- tiles: PER columns a thread, SCALED_GROUPS threads side by side ---- */

/* Transposes 4 x 4 bytes: word i of the result has byte i of each of the four words. */
static __device__ __forceinline__ void turn_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t *out)
{
    uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
    uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
    out[0] = __byte_perm(ab_low, cd_low, 0x5410);
    out[1] = __byte_perm(ab_low, cd_low, 0x7632);
    out[2] = __byte_perm(ab_high, cd_high, 0x5410);
    out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

/* Columns of a tile. Word `band` of a column is at band ^ 4 group, so that writes of a warp and reads of 8 threads use every bank once. */
template <int PER> struct TurnedTile {
    __align__(16) uint32_t columns[SCALED_GROUPS * PER][SCALED_BANDS];
};

/* Stores this thread's codes of SCALED_EACH rows into the tile. */
template <int PER> static __device__ __forceinline__ void put_turned(TurnedTile<PER> &tile, const uint32_t (*words)[PER / 4])
{
    int group = threadIdx.x % SCALED_GROUPS, band = threadIdx.x / SCALED_GROUPS;
#pragma unroll
    for (int w = 0; w < PER / 4; w++) {
        uint32_t columns[4];
        turn_bytes(words[0][w], words[1][w], words[2][w], words[3][w], columns);
#pragma unroll
        for (int i = 0; i < 4; i++) tile.columns[group * PER + 4 * w + i][band ^ 4 * group] = columns[i];
    }
}

/* Stores columns of the tile below `end` as rows of codes_t: 8 threads a column, 16 codes each. */
template <int PER>
static __device__ __forceinline__ void store_turned(const ScaledCodes &q, const TurnedTile<PER> &tile, int64_t row, int64_t col,
                                                    int64_t end)
{
    for (int piece = threadIdx.x; piece < SCALED_GROUPS * PER * 8; piece += SCALED_THREADS) {
        int      c = piece / 8, part = piece % 8;
        int64_t  at = row + part * 16;
        uint8_t *to = q.codes_t + (col + c) * q.rows + at;
        uint4    words = *reinterpret_cast<const uint4 *>(&tile.columns[c][(part ^ c / PER) * 4]);
        if (col + c >= end || at >= q.rows) continue;
        if (q.whole_t) {
            *reinterpret_cast<uint4 *>(to) = words;
            continue;
        }
        uint32_t each[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (at + i < q.rows) to[i] = (uint8_t)(each[i / 4] >> (8 * (i % 4)));
    }
}
