/* The third launch of `sample` (sample.cu), for rows with top-p or min-p and no top-k. The number of tokens in each bucket tells roughly
 * how far the kept mass reaches: which buckets may contain the border. The mass of tokens that certainly come before the border is
 * summed exactly, by groups; tokens that may be the border are listed. */
#pragma once

#include "ops/sample/sample_rows.cuh"

enum { BUCKETS_EACH = SAMPLE_BUCKETS / (SCAN_WARPS * 32) };

static __device__ __forceinline__ uint64_t below(double x)
{
    return x > 0 ? (uint64_t)x : 0;
}

/* The first and last bucket that may contain the border. */
struct Between {
    int first, last;
};

/* Masses of a thread's buckets, as if all tokens were in the middle of their bucket; returns their sum. The last bucket counts as 0, as
 * its distances are unknown. */
static __device__ uint64_t masses_of(const Sampling &s, int b, float width, uint64_t *mass)
{
    const uint4 *counts = (const uint4 *)(s.buckets + (int64_t)b * SAMPLE_BUCKETS) + threadIdx.x * (BUCKETS_EACH / 4);
    uint64_t     sum = 0;
#pragma unroll
    for (int i = 0; i < BUCKETS_EACH; i += 4) {
        uint4    four = counts[i / 4];
        uint32_t count[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            bool last = threadIdx.x * BUCKETS_EACH + i + k == SAMPLE_BUCKETS - 1;
            mass[i + k] = last ? 0 : count[k] * sample_weight_at((float)(threadIdx.x * BUCKETS_EACH + i + k) * -width);
            sum += mass[i + k];
        }
    }
    return sum;
}

/* Finds the buckets that may contain the border. A mass computed at a bucket's middle is wrong by at most half a bucket's width, plus about
 * 2^-16 of rounding. The same holds for sums up to the border; and for sums after it, if the unknown mass of the last bucket is added. The
 * tighter bound of the two is used. Must be called by all threads; scratch: 32 words. */
static __device__ Between find_between(const Sampling &s, const RowOf &row, uint64_t *scratch, Between *shared)
{
    const SampleState *state = s.state + row.b;
    float              width = state->per_distance > 0 ? 1 / state->per_distance : 0;
    uint64_t           mass[BUCKETS_EACH], all, sum = masses_of(s, row.b, width, mass), upto = block_scan(sum, scratch, &all) - sum;
    uint64_t           wanted = sample_wanted(&row.controls, state->all);
    double             off = 0.55 * (double)width + 0x1p-16, behind = (double)(state->all - wanted);
    double             far = (double)s.vocab * (double)sample_weight_at((SAMPLE_BUCKETS - 1.5f) * -width);
    uint64_t           least = max((uint64_t)((double)wanted * (1 - off)), below((double)all - behind * (1 + off)));
    uint64_t           most = min((uint64_t)((double)wanted * (1 + off)) + 1, below((double)all - (behind - far) * (1 - off)) + 1);
    if (threadIdx.x == 0) *shared = {0, SAMPLE_BUCKETS - 1};
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BUCKETS_EACH; i++) {
        uint64_t before = upto;
        upto += mass[i];
        if (upto >= least && before < least) shared->first = threadIdx.x * BUCKETS_EACH + i;
        if (upto >= most && before < most) shared->last = threadIdx.x * BUCKETS_EACH + i;
    }
    __syncthreads();
    return *shared;
}

/* Returns the mass of a group's kept tokens before the buckets `between`, and lists the tokens in these. *before also includes tokens
 * that min-p drops. LEAST: there is min-p. */
template <typename X, bool VEC, bool LEAST>
static __device__ uint64_t split_group(const Sampling &s, const RowOf &row, int g, const Tokens &of, const Buckets &buckets,
                                       const Between &between, const Listing &to, uint64_t *before)
{
    uint64_t mass = 0;
    each_step<X, VEC>(s, row.b, of.scores, g * s.group, min(s.vocab, (g + 1) * s.group), SAMPLE_STEP,
                      [&](int base, const float *v, auto together) {
                          LaneMass own = {}, kept = {};
                          unsigned listed = 0;
#pragma unroll
                          for (int k = 0; k < STEP_EACH; k++) {
                              float d = sample_distance(v[k], of.most, of.scale), e = sample_exp(d);
                              int   bucket = buckets.of(d);
                              bool  is_before = bucket < between.first;
                              if (bucket <= between.last && !is_before && v[k] == v[k]) listed |= 1u << k; /* NaN: outside the vocabulary */
                              e = is_before ? e : 0.0f;
                              own.add(e);
                              if (LEAST) kept.add(sample_mass(sample_coarse(e), sample_fine(e)) >= row.controls.least ? e : 0.0f);
                          }
                          list_step<decltype(together)>(to, base, v, listed);
                          uint64_t sum = own.of_warp();
                          *before += sum;
                          mass += LEAST ? kept.of_warp() : sum;
                      });
    return mass;
}

template <typename X, bool VEC, bool LEAST>
static __device__ uint64_t split_row(const Sampling &s, const RowOf &row, const Tokens &of, const Buckets &buckets, const Between &between)
{
    const Listing to = border_listing(s, row);
    uint64_t      before = 0;
    for (int g = blockIdx.x * SCAN_WARPS + threadIdx.x / 32; g < s.groups; g += gridDim.x * SCAN_WARPS) {
        float    most = sample_order_score(s.firsts[(int64_t)row.b * s.groups + g]);
        bool     there = buckets.of(sample_distance(most, of.most, of.scale)) <= between.last;
        uint64_t mass = there ? split_group<X, VEC, LEAST>(s, row, g, of, buckets, between, to, &before) : 0;
        if (threadIdx.x % 32 == 0) s.mass[(int64_t)row.b * s.groups + g] = mass;
    }
    return before;
}

template <typename X, bool VEC> static __global__ void __launch_bounds__(SCAN_WARPS * 32, 4) sample_split(Sampling s)
{
    __shared__ uint64_t scratch[32];
    __shared__ Between  found;
    int                 b = blockIdx.y;
    release_launches();
    RowOf row = await_row(s, b);
    if (row.slot < 0 || !row.by_mass) return;
    SampleState *state = s.state + b;
    if (!sample_key_fits(state->most)) return;
    const Tokens  of = {row.changed(), sample_of_key(state->most), row.controls.scale};
    const bool    part = row.controls.top_p < 1u << 24;
    const Buckets buckets = {part ? state->per_distance : 0};
    const Between none = {SAMPLE_BUCKETS, SAMPLE_BUCKETS}, between = part ? find_between(s, row, scratch, &found) : none;
    uint64_t      before =
        row.controls.least ? split_row<X, VEC, true>(s, row, of, buckets, between) : split_row<X, VEC, false>(s, row, of, buckets, between);
    if (threadIdx.x % 32 == 0 && before) atomicAdd((unsigned long long *)&state->above, (unsigned long long)before);
}
