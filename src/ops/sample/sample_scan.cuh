/* The first two launches of `sample` (sample.cu): scan and weigh. */
#pragma once

#include "ops/sample/sample_rows.cuh"

/* ---- scan ---- */

/* For each token of the step which bias it has, or -1: the last of those with its id. */
static __device__ void map_bias(const Sampling &s, int b, int base, int32_t *map)
{
    int lane = threadIdx.x & 31;
    __syncwarp();
    for (int k = lane; k < SAMPLE_STEP; k += 32) map[k] = -1;
    __syncwarp();
    for (int k = lane; k < s.num_bias; k += 32) {
        int64_t at = (int64_t)s.bias_ids[(int64_t)b * s.num_bias + k] - base;
        if (at >= 0 && at < SAMPLE_STEP) atomicMax(&map[at], k);
    }
    __syncwarp();
}

static __device__ __forceinline__ float changed_score(const Sampling &s, const RowOf &row, float x, int id, int32_t bias)
{
    if (bias >= 0) x = __fadd_rn(x, s.bias[(int64_t)row.b * s.num_bias + bias]);
    return row.penalised ? sample_penalised(&row.controls, x, row.seen[id]) : x;
}

/* Stores changed scores; returns whether one is NaN or +inf. */
template <typename T> static __device__ bool change_step(const Sampling &s, const RowOf &row, int base, int32_t *map, float *v)
{
    bool   bad = false;
    float *scores = s.scores + row.b * s.stride;
    if (row.biased) map_bias(s, row.b, base, map);
#pragma unroll
    for (int k = 0; k < STEP_EACH; k++) {
        int id = base + T::at(k);
        if (id >= s.vocab) continue;
        v[k] = changed_score(s, row, v[k], id, row.biased ? map[T::at(k)] : -1);
        bad |= !(v[k] < INFINITY);
        scores[id] = v[k];
    }
    return bad;
}

static __device__ __forceinline__ float most_of(const float *v, float most)
{
#pragma unroll
    for (int k = 0; k < STEP_EACH; k++) most = fmaxf(most, v[k]);
    return most;
}

/* The keys of a group's largest logit and score; all ones where the row has a score that can't be. */
template <typename X, bool VEC>
static __device__ void scan_group(const Sampling &s, const RowOf &row, int g, int32_t *map, uint32_t *logit_key, uint32_t *key)
{
    float most_logit = -INFINITY, most = -INFINITY;
    bool  bad = false;
    for (int base = g * s.group; base < (g + 1) * s.group && base < s.vocab; base += SAMPLE_STEP) {
        float v[STEP_EACH];
        load_step<X, VEC>((const X *)s.logits + row.b * s.cols, base, s.vocab, -INFINITY, v);
        most_logit = most_of(v, most_logit);
        if (row.changed()) {
            bad |= change_step<Together<VEC ? (int)Pack<X>::N : 1>>(s, row, base, map, v);
            most = most_of(v, most);
        } else {
#pragma unroll
            for (int k = 0; k < STEP_EACH; k++) bad |= !(v[k] < INFINITY);
        }
    }
    *logit_key = __reduce_max_sync(ALL_LANES, sample_key(most_logit));
    *key = row.changed() ? __reduce_max_sync(ALL_LANES, sample_key(most)) : *logit_key;
    if (__any_sync(ALL_LANES, bad)) *key = ~0u;
}

/* Also makes the row's state as `weigh` expects it. */
template <typename X, bool VEC> static __global__ void __launch_bounds__(SCAN_WARPS * 32) sample_scan(Sampling s)
{
    extern __shared__ int32_t maps[];
    int                       warp = threadIdx.x / 32, b = blockIdx.y;
    RowOf                     row = row_of(s, b);
    if (row.slot < 0) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) s.state[b] = SampleState();
    for (int g = blockIdx.x * SCAN_WARPS + warp; g < s.groups; g += gridDim.x * SCAN_WARPS) {
        uint32_t logit_key, key;
        scan_group<X, VEC>(s, row, g, maps + warp * SAMPLE_STEP, &logit_key, &key);
        if (threadIdx.x % 32) continue;
        s.logit_keys[(int64_t)b * s.groups + g] = logit_key;
        s.score_keys[(int64_t)b * s.groups + g] = key;
    }
}

/* ---- weigh ---- */

/* A key that `rank` of them reach, near the least of those; of a finite score. By a warp. all: any finite score's. */
static __device__ uint32_t reached_by(const uint32_t *keys, int count, int rank, bool all)
{
    uint32_t least = 0;
    for (uint32_t bit = 1u << 31; bit >= 1u << 12 && !all; bit >>= 1) {
        int reached = 0;
        for (int g = threadIdx.x & 31; g < count; g += 32) reached += keys[g] >= (least | bit);
        if ((int)__reduce_add_sync(ALL_LANES, reached) >= rank) least |= bit;
    }
    return max(least, sample_key(-3.4028235e38f));
}

/* Which of the groups' largest scores lists at least the first `count` tokens; where there are too few groups for that, or it isn't known
 * how many are needed, hardly more than fit. */
static __device__ __forceinline__ int rank_of(int64_t count, int groups)
{
    int most = max(1, groups - groups / 32);
    return count && count < most ? (int)count : most;
}

struct Listing {
    uint64_t *list;
    uint32_t *count;
    float     least;
};

/* Appends a step's tokens that are likely enough, in any order. */
template <typename T> static __device__ void list_step(const Listing &to, int base, const float *v)
{
#pragma unroll
    for (int k = 0; k < STEP_EACH; k++) {
        bool     likely = v[k] >= to.least;
        unsigned lanes = __ballot_sync(ALL_LANES, likely);
        if (!lanes) continue;
        int      lane = threadIdx.x & 31, first = __ffs(lanes) - 1;
        uint32_t at = 0;
        if (lane == first) at = atomicAdd(to.count, (uint32_t)__popc(lanes));
        at = __shfl_sync(ALL_LANES, at, first) + __popc(lanes & ((1u << lane) - 1));
        if (likely && at < SAMPLE_LIST) to.list[at] = sample_order(v[k], base + T::at(k));
    }
}

/* The mass of a group where `weighed`; lists its tokens where `listed`. */
template <typename X, bool VEC>
static __device__ uint64_t weigh_group(const Sampling &s, int b, bool scores, int g, float most, float scale, bool weighed, bool listed,
                                       const Listing &to)
{
    uint64_t mass = 0;
    each_step<X, VEC>(s, b, scores, g * s.group, min(s.vocab, (g + 1) * s.group), SAMPLE_STEP,
                      [&](int base, const float *v, auto together) {
                          int32_t coarse = 0, fine = 0;
                          if (listed) list_step<decltype(together)>(to, base, v);
                          if (!weighed) return;
#pragma unroll
                          for (int k = 0; k < STEP_EACH; k++) {
                              float e = sample_exp(sample_distance(v[k], most, scale));
                              coarse += sample_coarse(e);
                              fine += sample_fine(e);
                          }
                          /* the lanes' fine parts together could take more than 32 bits */
                          mass += sample_mass(__reduce_add_sync(ALL_LANES, coarse), (int64_t)__reduce_add_sync(ALL_LANES, fine >> 6) * 64 +
                                                                                        __reduce_add_sync(ALL_LANES, fine & 63));
                      });
    return mass;
}

template <typename X, bool VEC> static __global__ void __launch_bounds__(SCAN_WARPS * 32) sample_weigh(Sampling s)
{
    __shared__ uint32_t keys[SAMPLE_MOST_GROUPS], logit_keys[SAMPLE_MOST_GROUPS], scratch[32], least[2];
    int                 warp = threadIdx.x / 32, lane = threadIdx.x % 32, b = blockIdx.y;
    RowOf               row = row_of(s, b);
    if (row.slot < 0) return;
    for (int g = threadIdx.x; g < s.groups; g += blockDim.x) {
        keys[g] = s.score_keys[(int64_t)b * s.groups + g];
        logit_keys[g] = s.logit_keys[(int64_t)b * s.groups + g];
    }
    __syncthreads();
    uint32_t most_key = block_most(keys, s.groups, scratch);
    float    most = sample_of_key(most_key), most_logit = sample_of_key(block_most(logit_keys, s.groups, scratch));
    if (!sample_key_fits(most_key)) return;
    bool plain = !row.changed(), told = is_told(s), as_logits = plain && row.controls.scale == 1, all = !row.controls.top_k;
    int  rank = rank_of(row.controls.top_k, s.groups), best = rank_of(max(1, s.best), s.groups);
    if (plain && told) rank = best = max(rank, best);
    if (warp == 0) least[0] = reached_by(keys, s.groups, rank, s.vocab <= SAMPLE_LIST);
    if (warp == 1) least[1] = reached_by(logit_keys, s.groups, best, s.vocab <= SAMPLE_LIST);
    __syncthreads();
    SampleState *state = s.state + b;
    Listing      to = {s.list + (int64_t)b * SAMPLE_LIST, &state->listed, sample_of_key(least[0])};
    Listing      to_logits = plain ? to : Listing{s.logit_list + (int64_t)b * SAMPLE_LIST, &state->listed_logits, sample_of_key(least[1])};
    uint64_t     sum = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) state->least = least[0];
    for (int g = blockIdx.x * SCAN_WARPS + warp; g < s.groups; g += gridDim.x * SCAN_WARPS) {
        uint64_t mass = 0;
        bool     listed = keys[g] >= least[0] && !(plain && told), weighed = all && !(as_logits && told);
        if (told) mass = weigh_group<X, VEC>(s, b, false, g, most_logit, 1, true, logit_keys[g] >= least[1], to_logits);
        sum += mass;
        if (listed || weighed) mass = weigh_group<X, VEC>(s, b, !plain, g, most, row.controls.scale, weighed, listed, to);
        if (all && lane == 0) s.mass[(int64_t)b * s.groups + g] = mass;
    }
    if (told && lane == 0) atomicAdd((unsigned long long *)&state->mass, (unsigned long long)sum);
}
