/* Codes of rows on CUDA, for kernels that compute the rows: e4m3 with a scale for each FP8_TILE elements of a row (neighbouring threads
 * hold these elements, and all are active); or e4m3 or e5m2 under one scale. A thread holds 16 bytes of a row. */
#pragma once

#include "ops/lowbit/fp8_scaled.cuh"
#include "ops/lowbit/fp8_tiles.h"

/* Which codes a kernel stores besides its result; a template parameter of kernels. */
enum { CODES_NONE, CODES_BLOCKS, CODES_SCALED };

typedef struct RowCodes {
    ScaledCodes scaled; /* codes, rows and cols are used for both kinds */
    float      *scales; /* scales of blocks; NULL: not wanted */
} RowCodes;

/* The codes that are outputs `first` and later. scale: index of the input `scale`, after which comes `amax`; format: attribute `codes`. */
static inline RowCodes row_codes(const KernelArgs *args, int first, int scale, int64_t format, int64_t rows, int64_t cols)
{
    RowCodes q = {scaled_codes(args, first, scale, format, rows, cols), NULL};
    if (!q.scaled.scale) q.scales = (float *)args->out[first + 1].data;
    return q;
}

static inline int row_codes_kind(const RowCodes *q)
{
    if (q->scaled.scale) return scaled_codes_wanted(&q->scaled) ? CODES_SCALED : CODES_NONE;
    return q->scaled.codes || q->scales ? CODES_BLOCKS : CODES_NONE;
}

/* A thread's state for codes under one scale. */
struct RowState {
    float    factor;
    uint32_t most, seen; /* most: largest magnitude of this thread's elements so far; seen: amax before the block's work */
};

template <int CODES> static __device__ __forceinline__ RowState row_state(const RowCodes &q)
{
    RowState state = {0, 0, 0};
    if (CODES != CODES_SCALED) return state;
    state.factor = q.scaled.scale[FP8_SCALE];
    state.seen = seen_most(q.scaled);
    return state;
}

/* Called once by all threads of a block, at their end. */
template <int CODES> static __device__ __forceinline__ void row_record(const RowCodes &q, const RowState &state)
{
    if (CODES == CODES_SCALED) record_most(q.scaled, state.most, state.seen);
}

/* The largest `most` of THREADS neighbouring threads, which are a part of a warp. */
template <int THREADS> static __device__ __forceinline__ uint32_t most_of(uint32_t most)
{
    unsigned lane = threadIdx.x % 32, mask = THREADS == 32 ? 0xFFFFFFFFu : ((1u << THREADS % 32) - 1) << (lane / THREADS * THREADS);
#pragma unroll
    for (int apart = THREADS / 2; apart; apart /= 2) most = max(most, __shfl_xor_sync(mask, most, apart));
    return most;
}

/* Codes of v, which is overwritten, with the scale of the block that v belongs to. */
template <int N> static __device__ __forceinline__ void encode_block(const RowCodes &q, float *v, int64_t row, int64_t col, uint32_t *words)
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < N; i++) most = max(most, small_magnitude(v[i]));
    float scale = fp8_row_scale(most_of<FP8_TILE / N>(most)), inverse = 1 / scale;
    if (q.scales && col % FP8_TILE == 0) q.scales[col / FP8_TILE * q.scaled.rows + row] = scale;
#pragma unroll
    for (int i = 0; i < N; i++) v[i] *= inverse;
#pragma unroll
    for (int w = 0; w < N / 4; w++) words[w] = fp8_encode4(v + 4 * w, DT_E4M3);
}

/* Stores the codes of this thread's elements, rounded to T; the first is at `col` of the row. */
template <int CODES, typename T>
static __device__ __forceinline__ void store_row_codes(const RowCodes &q, RowState &state, const Pack<T> &pack, int64_t row, int64_t col)
{
    enum { N = Pack<T>::N };
    float    v[N];
    uint32_t words[N / 4];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = to_float(pack.v[i]);
    if (CODES == CODES_SCALED)
        state.most = max(state.most, encode_scaled<N>(v, state.factor, q.scaled.format, words));
    else
        encode_block<N>(q, v, row, col, words);
    if (q.scaled.codes) store_words<N / 4>(q.scaled.codes + row * q.scaled.cols + col, words);
}

/* Stores this thread's results of a row, from `col` on: in y (NULL: not wanted) and as codes. */
template <int CODES, typename T>
static __device__ __forceinline__ void store_result(T *y, const float *v, const RowCodes &q, RowState &state, int64_t row, int64_t col)
{
    Pack<T> pack = to_pack<T>(v);
    if (y) *reinterpret_cast<uint4 *>(y + row * q.scaled.cols + col) = pack.words;
    if (CODES) store_row_codes<CODES>(q, state, pack, row, col);
}
