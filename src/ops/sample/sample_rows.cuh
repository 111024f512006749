/* What the launches of `sample` (sample.cu) share: what a row is drawn by, and a warp's step over its tokens. */
#pragma once

#include "device/cuda/vec.cuh"

#include "ops/sample/sample.h"

enum { SCAN_WARPS = 8, CHOOSE_THREADS = 1024, CHOOSE_WARPS = CHOOSE_THREADS / 32, STEP_EACH = SAMPLE_STEP / 32, ALL_LANES = -1 };

struct Sampling {
    const void     *logits;
    int64_t         cols, stride, slots_count;
    int             rows, vocab, group, groups, num_bias, best;
    const float    *controls, *bias;
    const uint32_t *keys;
    const int32_t  *slots, *bias_ids;
    int32_t        *next, *ids, *best_ids;
    uint32_t       *seen;
    float          *logprobs, *best_logprobs;
    /* workspace */
    SampleState *state;
    uint64_t    *list, *logit_list, *mass;
    uint32_t    *score_keys, *logit_keys;
    float       *scores;
};

struct RowOf {
    SampleRow                       controls;
    int                             b;
    int64_t                         slot; /* negative: idle */
    bool                            penalised, biased;
    const uint32_t                 *seen;
    __device__ __forceinline__ bool changed() const
    {
        return penalised || biased;
    }
};

/* Called by whole warps. */
static __device__ RowOf row_of(const Sampling &s, int b)
{
    RowOf row;
    int   biased = 0;
    row.b = b;
    row.controls = sample_row(s.controls + (int64_t)b * SAMPLE_CONTROLS, s.vocab);
    row.slot = s.slots[b] < s.slots_count ? s.slots[b] : -1;
    row.seen = s.seen && row.slot >= 0 ? s.seen + row.slot * s.cols : NULL;
    row.penalised = row.seen && sample_penalises(&row.controls);
    for (int k = threadIdx.x & 31; k < s.num_bias; k += 32) {
        int32_t id = s.bias_ids[(int64_t)b * s.num_bias + k];
        biased |= id >= 0 && id < s.vocab;
    }
    row.biased = __any_sync(ALL_LANES, biased);
    return row;
}

static __device__ __forceinline__ bool is_told(const Sampling &s)
{
    return s.logprobs || s.best_ids || s.best_logprobs;
}

/* ---- a warp's step ---- */

template <int N> struct Together { /* tokens that lie side by side in a lane */
    static __device__ __forceinline__ int at(int k)
    {
        return k / N * 32 * N + (int)(threadIdx.x & 31) * N + k % N;
    }
};

/* A lane's tokens of SAMPLE_STEP from `base` on; `outside` for those behind the last. */
template <typename T, bool VEC> static __device__ __forceinline__ void load_step(const T *row, int base, int vocab, float outside, float *v)
{
    enum { N = VEC ? (int)Pack<T>::N : 1 };
    if (VEC && base + SAMPLE_STEP <= vocab) {
#pragma unroll
        for (int k = 0; k < STEP_EACH; k += Pack<T>::N) load_pack(row + base + Together<Pack<T>::N>::at(k), v + k);
    } else {
#pragma unroll
        for (int k = 0; k < STEP_EACH; k++) v[k] = base + Together<N>::at(k) < vocab ? to_float(row[base + Together<N>::at(k)]) : outside;
    }
}

/* f(base, v, Together) for the row's scores or logits from `begin` to `end`, a step each `turn` tokens. What is behind the last is NaN. */
template <typename X, bool VEC, typename F>
static __device__ __forceinline__ void each_step(const Sampling &s, int b, bool scores, int begin, int end, int turn, F f)
{
    enum { N = VEC ? (int)Pack<X>::N : 1 };
    for (int base = begin; base < end; base += turn) {
        float v[STEP_EACH];
        if (scores) {
            load_step<float, true>(s.scores + b * s.stride, base, s.vocab, NAN, v);
            f(base, v, Together<Pack<float>::N>());
        } else {
            load_step<X, VEC>((const X *)s.logits + b * s.cols, base, s.vocab, NAN, v);
            f(base, v, Together<N>());
        }
    }
}

static __device__ __forceinline__ uint64_t warp_sum64(uint64_t x)
{
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(ALL_LANES, (unsigned long long)x, offset);
    return x;
}

/* The largest key. By all threads of a block of whole warps; scratch: 32 words. */
static __device__ uint32_t block_most(const uint32_t *keys, int count, uint32_t *scratch)
{
    uint32_t most = 0;
    for (int g = threadIdx.x; g < count; g += blockDim.x) most = max(most, keys[g]);
    most = __reduce_max_sync(ALL_LANES, most);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = most;
    __syncthreads();
    most = __reduce_max_sync(ALL_LANES, threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0);
    __syncthreads();
    return most;
}
