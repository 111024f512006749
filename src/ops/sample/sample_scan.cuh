/* The first two launches of `sample` (sample.cu): scan and weigh. */
#pragma once

#include "ops/sample/sample_rows.cuh"

/* ---- scan ---- */

/* For each token of the step: map[i] becomes the index of its bias, -1: none. Of several biases for an id the last counts. */
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
    if (row.penalised) x = sample_penalised(&row.controls, x, row.seen[id]);
    return row.guide ? sample_guided(row.guide, id, x) : x;
}

/* Changes the scores of a step and stores them. Returns whether one is NaN or +inf. */
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

/* A lane's likeliest token. With `one` (top-k 1) it is the first of equal ones; else its id isn't tracked. */
struct First {
    float score;
    int   id;

    template <typename T> __device__ __forceinline__ void take(int base, const float *v, bool one)
    {
        if (!one) {
#pragma unroll
            for (int k = 0; k < STEP_EACH; k++) score = fmaxf(score, v[k]);
            return;
        }
#pragma unroll
        for (int k = 0; k < STEP_EACH; k++)
            if (v[k] > score) score = v[k], id = base + T::at(k);
    }
    /* The warp's likeliest token, as sample_order. */
    __device__ __forceinline__ uint64_t of_warp() const
    {
        uint32_t most = __reduce_max_sync(ALL_LANES, sample_key(score));
        return sample_order(sample_of_key(most), (int)__reduce_min_sync(ALL_LANES, sample_key(score) == most ? (unsigned)id : INT_MAX));
    }
};

/* Results of a group. first: its first token by score (sample_order), UINT64_MAX if a score is NaN or +inf. logit: key of the largest
 * logit. low: for rows with by_mass, ~key of the least score above -inf. */
struct GroupKeys {
    uint64_t first;
    uint32_t logit, low;
};

template <typename X, bool VEC> static __device__ GroupKeys scan_group(const Sampling &s, const RowOf &row, int g, int32_t *map)
{
    typedef Together<VEC ? (int)Pack<X>::N : 1> T;
    First                                       first_logit = {-INFINITY, 0}, first = first_logit;
    float                                       least = INFINITY;
    bool                                        bad = false, one = row.controls.top_k == 1;
    for (int base = g * s.group; base < (g + 1) * s.group && base < s.vocab; base += SAMPLE_STEP) {
        float v[STEP_EACH];
        load_step<X, VEC>((const X *)s.logits + row.b * s.cols, base, s.vocab, -INFINITY, v);
        first_logit.take<T>(base, v, one && !row.changed());
        if (row.changed()) {
            bad |= change_step<T>(s, row, base, map, v);
            first.take<T>(base, v, one);
        } else {
#pragma unroll
            for (int k = 0; k < STEP_EACH; k++) bad |= !(v[k] < INFINITY);
        }
#pragma unroll
        for (int k = 0; row.by_mass && k < STEP_EACH; k++) least = fminf(least, v[k] > -INFINITY ? v[k] : INFINITY);
    }
    GroupKeys keys = {first_logit.of_warp()};
    keys.logit = (uint32_t)(keys.first >> 32);
    keys.low = __reduce_max_sync(ALL_LANES, ~sample_key(least));
    if (row.changed()) keys.first = first.of_warp();
    if (__any_sync(ALL_LANES, bad)) keys.first = UINT64_MAX;
    return keys;
}

/* The first launch. Also initialises the row's state and buckets. */
template <typename X, bool VEC> static __global__ void __launch_bounds__(SCAN_WARPS * 32, 4) sample_scan(Sampling s)
{
    extern __shared__ int32_t maps[];
    int                       warp = threadIdx.x / 32, b = blockIdx.y;
    release_launches();
    RowOf row = await_row(s, b);
    if (row.slot < 0) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) s.state[b] = SampleState();
    if (blockIdx.x == 0 && row.by_mass)
        for (int i = threadIdx.x; i < SAMPLE_BUCKETS / 4; i += blockDim.x)
            ((uint4 *)(s.buckets + (int64_t)b * SAMPLE_BUCKETS))[i] = make_uint4(0, 0, 0, 0);
    for (int g = blockIdx.x * SCAN_WARPS + warp; g < s.groups; g += gridDim.x * SCAN_WARPS) {
        GroupKeys keys = scan_group<X, VEC>(s, row, g, maps + warp * SAMPLE_STEP);
        if (threadIdx.x % 32) continue;
        s.firsts[(int64_t)b * s.groups + g] = keys.first;
        s.logit_keys[(int64_t)b * s.groups + g] = keys.logit;
        s.low_keys[(int64_t)b * s.groups + g] = keys.low;
    }
}

/* ---- weigh ---- */

/* A key of a finite score that at least `rank` keys reach, a little below the rank-th largest. Called by one warp. Not inlined, as it
 * needs many registers just once. */
static __device__ __noinline__ uint32_t reached_by(const uint32_t *keys, int count, int rank)
{
    enum { EACH = SAMPLE_MOST_GROUPS / 32 };
    uint32_t own[EACH], least = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) own[i] = i * 32 + (int)(threadIdx.x & 31) < count ? keys[i * 32 + (threadIdx.x & 31)] : 0;
    for (uint32_t bit = 1u << 31; bit >= 1u << 12; bit >>= 1) {
        int reached = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i * 32 < count) reached += own[i] >= (least | bit);
        if ((int)__reduce_add_sync(ALL_LANES, reached) >= rank) least |= bit;
    }
    return max(least, sample_key(-3.4028235e38f));
}

/* The least key of a token that is listed: low enough that the first `count` tokens are listed. If there are too few groups to tell, it is
 * so high that few more tokens are listed than fit into the list. count 0: none is listed. */
static __device__ uint32_t least_listed(const uint32_t *keys, int groups, int64_t count, int64_t vocab)
{
    int most = max(1, groups - groups / 32);
    if (!count) return sample_key(INFINITY);
    if (vocab <= SAMPLE_LIST) return sample_key(-3.4028235e38f);
    return reached_by(keys, groups, count < most ? (int)count : most);
}

/* What to do with a group. */
struct Weighing {
    bool    weighed, listed;
    Listing to;
    float   least; /* lists tokens whose score is at least this */
};

/* Returns the mass of a group if `weighed`; lists its tokens if `listed`. */
template <typename X, bool VEC>
static __device__ uint64_t weigh_group(const Sampling &s, int b, const Tokens &of, int g, const Weighing &what)
{
    uint64_t mass = 0;
    each_step<X, VEC>(s, b, of.scores, g * s.group, min(s.vocab, (g + 1) * s.group), SAMPLE_STEP,
                      [&](int base, const float *v, auto together) {
                          LaneMass own = {};
                          unsigned likely = 0;
                          if (what.listed) {
#pragma unroll
                              for (int k = 0; k < STEP_EACH; k++) likely |= (unsigned)(v[k] >= what.least) << k;
                              list_step<decltype(together)>(what.to, base, v, likely);
                          }
                          if (!what.weighed) return;
#pragma unroll
                          for (int k = 0; k < STEP_EACH; k++) own.add(sample_exp(sample_distance(v[k], of.most, of.scale)));
                          mass += own.of_warp();
                      });
    return mass;
}

/* Returns the mass of a group, and counts its tokens by bucket. Tokens outside the vocabulary (NaN) are counted in the last bucket. */
template <typename X, bool VEC>
static __device__ uint64_t count_group(const Sampling &s, int b, const Tokens &of, int g, const Buckets &buckets, uint32_t *counts)
{
    uint64_t mass = 0;
    each_step<X, VEC>(s, b, of.scores, g * s.group, min(s.vocab, (g + 1) * s.group), SAMPLE_STEP, [&](int, const float *v, auto) {
        LaneMass own = {};
#pragma unroll
        for (int k = 0; k < STEP_EACH; k++) {
            float d = sample_distance(v[k], of.most, of.scale);
            atomicAdd(&counts[buckets.of(d)], 1u);
            own.add(sample_exp(d));
        }
        mass += own.of_warp();
    });
    return mass;
}

/* Chooses the width of buckets: all but the last span the scores, but no further than the border can be. Tokens farther from the largest
 * score than ln(vocab / (1 - p)) have a mass below 1 - p, so the border isn't among them. */
static __device__ float buckets_per_distance(const Sampling &s, const RowOf &row, float most, float low)
{
    float rest = (float)((1u << 24) - row.controls.top_p) * 0x1p-24f, span = fminf((most - low) * row.controls.scale, 30);
    if (rest > 0) span = fminf(span, __logf((float)s.vocab / rest) + 1);
    return span > 1e-30f ? (SAMPLE_BUCKETS - 1) / span : 0;
}

/* A thread block's part of counting a row with top-p: mass and buckets. */
template <typename X, bool VEC>
static __device__ void count_row(const Sampling &s, const RowOf &row, const Tokens &of, uint32_t *counts, uint32_t *scratch)
{
    SampleState *state = s.state + row.b;
    uint64_t     mass = 0;
    uint32_t     low = 0, *to = s.buckets + (int64_t)row.b * SAMPLE_BUCKETS;
    for (int g = threadIdx.x; g < s.groups; g += blockDim.x) low = max(low, s.low_keys[(int64_t)row.b * s.groups + g]);
    low = ~block_most(low, scratch);
    const Buckets buckets = {buckets_per_distance(s, row, of.most, sample_of_key(low))};
    for (int i = threadIdx.x; i < SAMPLE_BUCKETS; i += blockDim.x) counts[i] = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) state->per_distance = buckets.per_distance;
    __syncthreads();
    for (int g = blockIdx.x * SCAN_WARPS + threadIdx.x / 32; g < s.groups; g += gridDim.x * SCAN_WARPS)
        mass += count_group<X, VEC>(s, row.b, of, g, buckets, counts);
    if (threadIdx.x % 32 == 0) atomicAdd((unsigned long long *)&state->all, (unsigned long long)mass);
    __syncthreads();
    for (int i = threadIdx.x; i < SAMPLE_BUCKETS; i += blockDim.x)
        if (counts[i]) atomicAdd(&to[i], counts[i]);
}

/* For each group the largest keys of scores and of logits; then the least keys of tokens to list by score and by logit. */
struct Lists {
    uint32_t keys[SAMPLE_MOST_GROUPS], logit_keys[SAMPLE_MOST_GROUPS], least, least_logit;
};

/* A thread block's part of the masses and lists of a row. */
template <typename X, bool VEC>
static __device__ void weigh_and_list(const Sampling &s, const RowOf &row, const Tokens &of, const Tokens &of_logits, const Lists &lists)
{
    bool     plain = !row.changed(), told = is_told(s), all = !row.controls.top_k && !row.by_mass;
    bool     weighed = all && !(plain && row.controls.scale == 1 && told);
    Weighing of_scores = {weighed, false, listing(s, row.b), sample_of_key(lists.least)};
    Weighing by_logits = {true, false, plain ? listing(s, row.b) : logit_listing(s, row.b), sample_of_key(lists.least_logit)};
    uint64_t sum = 0;
    for (int g = blockIdx.x * SCAN_WARPS + threadIdx.x / 32; g < s.groups; g += gridDim.x * SCAN_WARPS) {
        uint64_t mass = 0;
        of_scores.listed = lists.keys[g] >= lists.least && !(plain && told);
        by_logits.listed = lists.logit_keys[g] >= lists.least_logit;
        if (told) mass = weigh_group<X, VEC>(s, row.b, of_logits, g, by_logits);
        sum += mass;
        if (of_scores.listed || weighed) mass = weigh_group<X, VEC>(s, row.b, of, g, of_scores);
        if (all && threadIdx.x % 32 == 0) s.mass[(int64_t)row.b * s.groups + g] = mass;
    }
    if (told && threadIdx.x % 32 == 0) atomicAdd((unsigned long long *)&s.state[row.b].mass, (unsigned long long)sum);
}

/* Fills in `lists` from the groups' keys: tokens to list by score for top-k, by logit for the `best` outputs. */
static __device__ void find_lists(const Sampling &s, const RowOf &row, Lists *lists, uint32_t *scratch, uint32_t *most,
                                  uint32_t *most_logit)
{
    int     warp = threadIdx.x / 32;
    int64_t count = row.controls.top_k > 1 ? row.controls.top_k : 0, best = is_told(s) ? s.best : 0;
    *most = *most_logit = 0;
    for (int g = threadIdx.x; g < s.groups; g += blockDim.x) {
        uint32_t key = (uint32_t)(s.firsts[(int64_t)row.b * s.groups + g] >> 32), logit_key = s.logit_keys[(int64_t)row.b * s.groups + g];
        lists->keys[g] = key, lists->logit_keys[g] = logit_key;
        *most = max(*most, key), *most_logit = max(*most_logit, logit_key);
    }
    *most = block_most(*most, scratch), *most_logit = block_most(*most_logit, scratch);
    if (!row.changed() && is_told(s)) count = best = max(count, best);
    if (warp == 0) lists->least = least_listed(lists->keys, s.groups, count, s.vocab);
    if (warp == 1) lists->least_logit = least_listed(lists->logit_keys, s.groups, best, s.vocab);
    __syncthreads();
}

template <typename X, bool VEC> static __global__ void __launch_bounds__(SCAN_WARPS * 32, 4) sample_weigh(Sampling s)
{
    __shared__ Lists    lists;
    __shared__ uint32_t scratch[32], counts[SAMPLE_BUCKETS];
    int                 b = blockIdx.y;
    uint32_t            most, most_logit;
    release_launches();
    RowOf row = await_row(s, b);
    if (row.slot < 0 || (row.controls.top_k == 1 && !is_told(s))) return;
    find_lists(s, row, &lists, scratch, &most, &most_logit);
    if (!sample_key_fits(most)) return;
    const Tokens of = {row.changed(), sample_of_key(most), row.controls.scale}, of_logits = {false, sample_of_key(most_logit), 1};
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        SampleState *state = s.state + b;
        state->least = lists.least, state->most = most, state->most_logit = most_logit;
    }
    weigh_and_list<X, VEC>(s, row, of, of_logits, lists);
    if (row.by_mass && row.controls.top_p < 1u << 24) count_row<X, VEC>(s, row, of, counts, scratch);
}
