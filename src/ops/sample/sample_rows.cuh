/* Shared by the launches of `sample` (sample.cu): a row's controls, and a warp's step over tokens. */
#pragma once

#include "device/cuda/vec.cuh"

#include "ops/sample/sample.h"

enum { SCAN_WARPS = 8, CHOOSE_THREADS = 1024, CHOOSE_WARPS = CHOOSE_THREADS / 32, STEP_EACH = SAMPLE_STEP / 32, ALL_LANES = -1 };

struct Sampling {
    const void     *logits;
    int64_t         cols, stride, slots_count;
    int             rows, vocab, group, groups, num_bias, best;
    bool            known; /* no launch of the program writes controls, slots or biases */
    int64_t         guide_words;
    const float    *controls, *bias;
    const uint32_t *keys, *guides;
    const int32_t  *slots, *bias_ids;
    int32_t        *next, *ids, *best_ids;
    uint32_t       *seen;
    float          *logprobs, *best_logprobs;
    /* arrays in the workspace */
    SampleState *state;
    uint64_t    *list, *logit_list, *mass, *firsts;
    uint32_t    *buckets, *logit_keys, *low_keys;
    float       *scores;
};

struct RowOf {
    SampleRow                       controls;
    int                             b;
    int64_t                         slot; /* negative: the row is idle */
    bool                            penalised, biased;
    bool                            by_mass;      /* the row has top-p or min-p, and no top-k */
    const uint32_t                 *seen, *guide; /* NULL: the row has none */
    __device__ __forceinline__ bool changed() const
    {
        return penalised || biased || guide;
    }
};

/* Reads a row's controls. Must be called by whole warps. */
static __device__ RowOf row_of(const Sampling &s, int b)
{
    RowOf row;
    int   biased = 0;
    row.b = b;
    row.controls = sample_row(s.controls + (int64_t)b * SAMPLE_CONTROLS, s.vocab);
    row.slot = s.slots[b] < s.slots_count ? s.slots[b] : -1;
    row.seen = s.seen && row.slot >= 0 ? s.seen + row.slot * s.cols : NULL;
    row.guide = s.guides && s.controls[(int64_t)b * SAMPLE_CONTROLS + SAMPLE_GUIDED] != 0 ? s.guides + b * s.guide_words : NULL;
    row.penalised = row.seen && sample_penalises(&row.controls);
    for (int k = threadIdx.x & 31; k < s.num_bias; k += 32) {
        int32_t id = s.bias_ids[(int64_t)b * s.num_bias + k];
        biased |= id >= 0 && id < s.vocab;
    }
    row.biased = __any_sync(ALL_LANES, biased);
    row.by_mass = !row.controls.top_k && (row.controls.top_p < 1u << 24 || row.controls.least);
    return row;
}

/* row_of, and waits for earlier launches. If no launch of the program writes the controls, it reads them before waiting. */
static __device__ __forceinline__ RowOf await_row(const Sampling &s, int b)
{
    RowOf row;
    if (s.known) row = row_of(s, b);
    await_launches();
    if (!s.known) row = row_of(s, b);
    return row;
}

static __device__ __forceinline__ bool is_told(const Sampling &s)
{
    return s.logprobs || s.best_ids || s.best_logprobs;
}

/* ---- a warp's step ---- */

template <int N> struct Together { /* tokens of a step: a lane has N adjacent ones in each load */
    static __device__ __forceinline__ int at(int k)
    {
        return k / N * 32 * N + (int)(threadIdx.x & 31) * N + k % N;
    }
};

/* Loads a lane's tokens of the step at `base`; ids from `vocab` on get the value `outside`. */
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

/* Calls f(base, v, Together) for steps over the row's scores or logits, at begin, begin + turn, ... below end. Tokens outside the
 * vocabulary are NaN. */
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

/* Returns the sum over threads up to this one, inclusive; *all: the sum over all threads. Must be called by all threads of a block of
 * whole warps. part: 32 words of shared memory. */
static __device__ uint64_t block_scan(uint64_t x, uint64_t *part, uint64_t *all)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        uint64_t before = __shfl_up_sync(ALL_LANES, (unsigned long long)x, offset);
        if (lane >= offset) x += before;
    }
    if (lane == 31) part[warp] = x;
    __syncthreads();
    uint64_t own = lane < blockDim.x / 32 ? part[lane] : 0, before = warp_sum64(lane < warp ? own : 0);
    *all = warp_sum64(own);
    __syncthreads();
    return x + before;
}

/* The largest value in the block. Must be called by all threads of a block of whole warps. scratch: 32 words of shared memory. */
static __device__ uint32_t block_most(uint32_t most, uint32_t *scratch)
{
    most = __reduce_max_sync(ALL_LANES, most);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = most;
    __syncthreads();
    most = __reduce_max_sync(ALL_LANES, threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0);
    __syncthreads();
    return most;
}

/* ---- lists and buckets ---- */

/* The values to choose by: a row's scores, or its logits. */
struct Tokens {
    bool  scores; /* the values are in s.scores; else they are the logits */
    float most, scale;
};

struct Listing {
    uint64_t *list;
    uint32_t *count;
};

/* The list of the likeliest tokens by logits, if scores differ from logits; else it is free for other use. */
static __device__ __forceinline__ Listing logit_listing(const Sampling &s, int b)
{
    return {s.logit_list + (int64_t)b * SAMPLE_LIST, &s.state[b].listed_logits};
}

static __device__ __forceinline__ Listing listing(const Sampling &s, int b)
{
    return {s.list + (int64_t)b * SAMPLE_LIST, &s.state[b].listed};
}

/* The list of tokens that may be the border: the list that isn't used for the likeliest by logits. */
static __device__ __forceinline__ Listing border_listing(const Sampling &s, const RowOf &row)
{
    return row.changed() ? listing(s, row.b) : logit_listing(s, row.b);
}

/* Appends the tokens of a step whose bit is set in `own`, in any order. */
template <typename T> static __device__ __forceinline__ void list_step(const Listing &to, int base, const float *v, unsigned own)
{
    if (!__any_sync(ALL_LANES, own)) return;
    int      lane = threadIdx.x & 31;
    uint32_t upto = (uint32_t)__popc(own), at = 0;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        uint32_t before = __shfl_up_sync(ALL_LANES, upto, offset);
        if (lane >= offset) upto += before;
    }
    if (lane == 31) at = atomicAdd(to.count, upto);
    at = __shfl_sync(ALL_LANES, at, 31) + upto - (uint32_t)__popc(own);
#pragma unroll
    for (int k = 0; k < STEP_EACH; k++)
        if (own >> k & 1 && at < SAMPLE_LIST) to.list[at++] = sample_order(v[k], base + T::at(k));
}

/* Mass of at most STEP_EACH tokens of a lane. */
struct LaneMass {
    int32_t coarse, fine;

    __device__ __forceinline__ void add(float e)
    {
        coarse += sample_coarse(e);
        fine += sample_fine(e);
    }
    /* Sums over the warp. The sum of fine parts may need more than 32 bits, so it is taken in two pieces. */
    __device__ __forceinline__ uint64_t of_warp() const
    {
        return sample_mass(__reduce_add_sync(ALL_LANES, coarse),
                           (int64_t)__reduce_add_sync(ALL_LANES, fine >> 6) * 64 + __reduce_add_sync(ALL_LANES, fine & 63));
    }
};

/* Buckets of distances from the largest score: a token that comes first in the order is in the same bucket or an earlier one. Bucket k
 * holds distances within 1/2 of k, in units of 1 / per_distance; the last one holds all larger distances, and NaN. */
struct Buckets {
    float per_distance;

    __device__ __forceinline__ int of(float distance) const
    {
        float at = fminf(__fmul_rn(-distance, per_distance), (float)(SAMPLE_BUCKETS - 1));
        return (int)(sample_bits(__fadd_rn(at, SAMPLE_MAGIC)) - sample_bits(SAMPLE_MAGIC));
    }
};
