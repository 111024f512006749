/* sample on CUDA, in three launches. `scan`: the largest logit and score of each group of a row, and the scores where they differ from the
 * logits. `weigh`: the logits' mass, masses of groups of scores where a filter reads all of them, and a list of the likeliest tokens: those
 * that the k-th largest of the groups' largest scores leaves are at least k, and hardly more. `choose`, a block a row: it sorts the list
 * and decides in it where that is enough; where it isn't, it narrows the row down to what fits into the list, some passes over it.
 * Masses are whole numbers: atomics in any order give the same bits. Groups below what is listed are passed over where nothing else reads
 * them, so that a greedy row that isn't told log-probabilities is read once. */
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

/* By all threads of a block of whole warps; scratch: 32 words. */
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

/* ---- choose ---- */

struct Shared {
    uint64_t list[SAMPLE_LIST]; /* places in the order */
    uint64_t mass[SAMPLE_LIST]; /* of those up to each */
    uint64_t group[SAMPLE_MOST_GROUPS];
    uint64_t part[CHOOSE_WARPS], found, found_mass;
    uint64_t pivot_mass[3];
    uint32_t pivot_count[3], count, scratch[32];
    int32_t  id;
};

/* What `choose` decides of: a row's scores, or its logits. */
struct Tokens {
    bool  scores; /* of the workspace */
    float most, scale;
};

/* The inclusive sum up to each thread; *all: of all. */
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
    uint64_t own = part[lane], before = warp_sum64(lane < warp ? own : 0);
    *all = warp_sum64(own);
    __syncthreads();
    return x + before;
}

/* Sorts the first n of the list, the largest first; by all threads. A warp's pairs of a distance below 64 are its own. */
static __device__ void sort_list(Shared *sh, int n)
{
    int size = 64;
    while (size < n) size *= 2;
    for (int i = n + threadIdx.x; i < size; i += CHOOSE_THREADS) sh->list[i] = 0;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2)
        for (int distance = run / 2; distance; distance /= 2) {
            int i = 2 * (int)threadIdx.x - ((int)threadIdx.x & (distance - 1)), k = i + distance;
            if (k < size) {
                uint64_t a = sh->list[i], b = sh->list[k];
                if ((a < b) == !(i & run)) sh->list[i] = b, sh->list[k] = a;
            }
            if (distance > 32 || (distance == 1 && run >= 64))
                __syncthreads();
            else
                __syncwarp();
        }
    __syncthreads();
}

static __device__ __forceinline__ uint64_t weight_in(const Tokens &of, uint64_t order)
{
    return sample_weight(sample_order_score(order), of.most, of.scale);
}

/* The masses up to each of the first n of the list. */
static __device__ void add_up(Shared *sh, const Tokens &of, int n)
{
    uint64_t before = 0;
    for (int first = 0; first < n; first += CHOOSE_THREADS) {
        int      i = first + (int)threadIdx.x;
        uint64_t all, mass = block_scan(i < n ? weight_in(of, sh->list[i]) : 0, sh->part, &all);
        if (i < n) sh->mass[i] = before + mass;
        before += all;
    }
    __syncthreads();
}

/* The first of the list, n of them, up to which `count` tokens or the mass `wanted` are reached, with so many before it; -1: none. */
static __device__ int first_reaching(Shared *sh, int n, int64_t count, uint64_t wanted, int64_t count_before, uint64_t mass_before)
{
    if (threadIdx.x == 0) sh->id = -1;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
        bool here = count_before + i + 1 >= count || mass_before + sh->mass[i] >= wanted;
        bool before = i && (count_before + i >= count || mass_before + sh->mass[i - 1] >= wanted);
        if (here && !before) sh->id = i;
    }
    __syncthreads();
    int found = sh->id;
    __syncthreads();
    return found;
}

/* f(order) for each token of the row. */
template <typename X, bool VEC, typename F>
static __device__ __forceinline__ void each_token(const Sampling &s, int b, const Tokens &of, F f)
{
    int warp = threadIdx.x / 32;
    each_step<X, VEC>(s, b, of.scores, warp * SAMPLE_STEP, s.vocab, CHOOSE_WARPS * SAMPLE_STEP,
                      [&](int base, const float *v, auto together) {
#pragma unroll
                          for (int k = 0; k < STEP_EACH; k++) {
                              int id = base + decltype(together)::at(k);
                              if (id < s.vocab) f(sample_order(v[k], id), v[k]);
                          }
                      });
}

/* Puts the row's tokens of [low, above) into the list, sorted; there are at most SAMPLE_LIST. Returns how many. */
template <typename X, bool VEC>
static __device__ int list_between(const Sampling &s, Shared *sh, int b, const Tokens &of, uint64_t low, uint64_t above)
{
    if (threadIdx.x == 0) sh->count = 0;
    __syncthreads();
    each_token<X, VEC>(s, b, of, [&](uint64_t order, float) {
        if (order < low || order >= above) return;
        uint32_t at = atomicAdd(&sh->count, 1u);
        if (at < SAMPLE_LIST) sh->list[at] = order;
    });
    __syncthreads();
    int n = min(sh->count, (uint32_t)SAMPLE_LIST);
    __syncthreads();
    sort_list(sh, n);
    return n;
}

/* Counts and masses of the tokens that reach each of three pivots. */
template <typename X, bool VEC>
static __device__ void measure(const Sampling &s, Shared *sh, int b, const Tokens &of, const uint64_t *pivot, bool weighed)
{
    uint64_t mass[3] = {};
    uint32_t count[3] = {};
    if (threadIdx.x < 3) sh->pivot_mass[threadIdx.x] = 0, sh->pivot_count[threadIdx.x] = 0;
    __syncthreads();
    each_token<X, VEC>(s, b, of, [&](uint64_t order, float v) {
        uint64_t weight = weighed ? sample_weight(v, of.most, of.scale) : 0;
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (order >= pivot[k]) mass[k] += weight, count[k]++;
    });
    for (int k = 0; k < 3; k++) {
        uint64_t sum = warp_sum64(mass[k]);
        uint32_t more = __reduce_add_sync(ALL_LANES, count[k]);
        if (threadIdx.x % 32) continue;
        atomicAdd((unsigned long long *)&sh->pivot_mass[k], (unsigned long long)sum);
        atomicAdd(&sh->pivot_count[k], more);
    }
    __syncthreads();
}

/* The place in the order of the token with which `count` tokens or the mass `wanted` are reached; *mass up to it. The whole row is read for
 * each cut of what is left into quarters, until that fits into the list. */
template <typename X, bool VEC>
static __device__ uint64_t narrow(const Sampling &s, Shared *sh, int b, const Tokens &of, int64_t count, uint64_t wanted, uint64_t *mass)
{
    uint64_t low = 0, above = sample_order(of.most, 0) + 1, mass_above = 0;
    int64_t  count_above = 0, count_low = s.vocab;
    bool     weighed = wanted != UINT64_MAX;
    float    zero = of.most - 31 / of.scale;
    if (weighed && count >= s.vocab && sample_distance(zero, of.most, of.scale) <= -30) /* from there down weights are 0 */
        low = (uint64_t)sample_key(zero) << 32;
    while (count_low - count_above > SAMPLE_LIST) {
        uint64_t quarter = (above - low) / 4, pivot[3] = {low + quarter, low + 2 * quarter, low + 3 * quarter};
        measure<X, VEC>(s, sh, b, of, pivot, weighed);
        for (int k = 0; k < 3; k++) {
            int64_t  reached = sh->pivot_count[k];
            uint64_t held = sh->pivot_mass[k];
            if (reached >= count || held >= wanted) {
                low = pivot[k];
                count_low = reached;
            } else {
                above = pivot[k];
                count_above = reached;
                mass_above = held;
                break;
            }
        }
        __syncthreads();
    }
    int n = list_between<X, VEC>(s, sh, b, of, low, above);
    add_up(sh, of, n);
    int last = first_reaching(sh, n, count, wanted, count_above, mass_above);
    last = last < 0 ? n - 1 : last;
    *mass = mass_above + sh->mass[last];
    uint64_t border = sh->list[last];
    __syncthreads();
    return border;
}

/* The border where the list doesn't have it. */
template <typename X, bool VEC>
static __device__ uint64_t border_of_row(const Sampling &s, Shared *sh, const RowOf &row, const Tokens &of, uint64_t all)
{
    const SampleRow *controls = &row.controls;
    uint64_t         border = 0;
    if (controls->top_k) border = narrow<X, VEC>(s, sh, row.b, of, controls->top_k, UINT64_MAX, &all);
    if (controls->top_k && controls->top_p < 1u << 24) { /* the weights of those were not asked for */
        uint64_t pivot[3] = {border, border, border};
        measure<X, VEC>(s, sh, row.b, of, pivot, true);
        all = sh->pivot_mass[0];
        __syncthreads();
    }
    if (controls->top_p == 1u << 24) return border;
    uint64_t mass, last = narrow<X, VEC>(s, sh, row.b, of, s.vocab, sample_wanted(controls, all), &mass);
    return max(last, border);
}

/* How many first tokens of the sorted list of n are kept, before min-p; -1: what is listed doesn't say. all: the mass of the row where
 * there is no top-k. */
static __device__ int kept_of_list(Shared *sh, const RowOf &row, const Tokens &of, const SampleState *state, int n, uint64_t all)
{
    const SampleRow *controls = &row.controls;
    float            least = sample_of_key(state->least);
    /* what isn't listed weighs nothing */
    bool whole = sample_distance(least, of.most, of.scale) <= -29, part = controls->top_p < 1u << 24;
    if (!n) return -1;
    if (controls->top_k && n < controls->top_k && !whole) return -1;
    int first = controls->top_k && controls->top_k < n ? (int)controls->top_k : n;
    if (controls->top_k) all = sh->mass[first - 1];
    if (part) {
        int last = first_reaching(sh, first, INT64_MAX, sample_wanted(controls, all), 0, 0);
        return last < 0 ? -1 : last + 1;
    }
    if (controls->top_k || whole) return first;
    /* rounding may make a weight of a lower score larger, by some 2^-22 of it */
    uint64_t weight = sample_weight(least, of.most, of.scale);
    return weight + (weight >> 16) + 1 < controls->least ? first : -1;
}

/* The id drawn of the first n of the list whose weight is at least `least`. */
static __device__ int32_t draw_of_list(Shared *sh, int n, uint64_t least, const uint32_t *keys, uint64_t *kept)
{
    uint64_t sum = 0;
    for (int first = 0; first < n; first += CHOOSE_THREADS) {
        int      i = first + (int)threadIdx.x;
        uint64_t own = i < n ? sh->mass[i] - (i ? sh->mass[i - 1] : 0) : 0, all;
        block_scan(own >= least ? own : 0, sh->part, &all);
        sum += all;
    }
    uint64_t drawn = sample_draw(keys, sum);
    *kept = sum;
    for (int i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
        uint64_t own = 0, upto = 0, before = 0;
        int32_t  id = sample_order_id(sh->list[i]);
        for (int k = 0; k < n; k++) {
            uint64_t weight = sh->mass[k] - before;
            before = sh->mass[k];
            if (weight < least || sample_order_id(sh->list[k]) > id) continue;
            upto += weight;
            if (k == i) own = weight;
        }
        if (own && upto > drawn && upto - own <= drawn) sh->id = id;
    }
    __syncthreads();
    return sh->id;
}

/* The masses of what is kept of each group, for draw_of_row. */
template <typename X, bool VEC>
static __device__ void weigh_kept(const Sampling &s, Shared *sh, int b, const Tokens &of, uint64_t border, uint64_t least)
{
    for (int g = threadIdx.x / 32; g < s.groups; g += CHOOSE_WARPS) {
        uint64_t mass = 0;
        each_step<X, VEC>(s, b, of.scores, g * s.group, min(s.vocab, (g + 1) * s.group), SAMPLE_STEP,
                          [&](int base, const float *v, auto together) {
#pragma unroll
                              for (int k = 0; k < STEP_EACH; k++) {
                                  int id = base + decltype(together)::at(k);
                                  if (id >= s.vocab || sample_order(v[k], id) < border) continue;
                                  uint64_t weight = sample_weight(v[k], of.most, of.scale);
                                  mass += weight >= least ? weight : 0;
                              }
                          });
        mass = warp_sum64(mass);
        if (threadIdx.x % 32 == 0) sh->group[g] = mass;
    }
    __syncthreads();
}

/* One score of the row. */
template <typename X> static __device__ __forceinline__ float score_at(const Sampling &s, int b, const Tokens &of, int id)
{
    return of.scores ? s.scores[b * s.stride + id] : to_float(((const X *)s.logits)[b * s.cols + id]);
}

/* The id drawn of all that is kept, by the masses of groups; the first warp looks through the group. */
template <typename X>
static __device__ int32_t draw_of_row(const Sampling &s, Shared *sh, int b, const Tokens &of, uint64_t border, uint64_t least,
                                      uint64_t *kept)
{
    uint64_t own = (int)threadIdx.x < s.groups ? sh->group[threadIdx.x] : 0, upto = block_scan(own, sh->part, kept);
    uint64_t drawn = sample_draw(s.keys + (int64_t)b * SAMPLE_KEYS, *kept);
    if (upto > drawn && upto - own <= drawn) sh->found = threadIdx.x, sh->found_mass = drawn - (upto - own);
    __syncthreads();
    int lane = threadIdx.x, end = min(s.vocab, ((int)sh->found + 1) * s.group);
    drawn = sh->found_mass;
    for (int base = (int)sh->found * s.group; lane < 32 && base < end; base += 32) {
        int      id = base + lane;
        uint64_t weight = 0;
        if (id < end && sample_order(score_at<X>(s, b, of, id), id) >= border)
            weight = sample_weight(score_at<X>(s, b, of, id), of.most, of.scale);
        if (weight < least) weight = 0;
        uint64_t sum = weight;
        for (int offset = 1; offset < 32; offset <<= 1) {
            uint64_t before = __shfl_up_sync(ALL_LANES, (unsigned long long)sum, offset);
            if (lane >= offset) sum += before;
        }
        unsigned lanes = __ballot_sync(ALL_LANES, sum > drawn);
        if (lanes) {
            if (lane == 0) sh->id = base + __ffs(lanes) - 1;
            break;
        }
        drawn -= __shfl_sync(ALL_LANES, (unsigned long long)sum, 31);
    }
    __syncthreads();
    return sh->id;
}

/* Copies a row's list, sorted; returns how many, 0 where not all are there. */
static __device__ int read_list(Shared *sh, const uint64_t *list, uint32_t count)
{
    if (count > SAMPLE_LIST) return 0;
    for (int i = threadIdx.x; i < (int)count; i += CHOOSE_THREADS) sh->list[i] = list[i];
    __syncthreads();
    sort_list(sh, (int)count);
    return (int)count;
}

/* The likeliest by the logits, of the sorted list. */
static __device__ void tell_best(const Sampling &s, const Shared *sh, int b, float most, uint64_t mass)
{
    for (int k = threadIdx.x; k < max(1, s.best); k += CHOOSE_THREADS) {
        bool    there = k < min(s.best, s.vocab);
        int64_t at = (int64_t)b * max(1, s.best) + k;
        if (s.best_ids) s.best_ids[at] = there ? sample_order_id(sh->list[k]) : -1;
        if (s.best_logprobs) s.best_logprobs[at] = there ? sample_logprob(sample_order_score(sh->list[k]), most, 1, mass) : 0;
    }
}

/* A row without a choice. */
static __device__ void put_none(const Sampling &s, int b, int32_t id)
{
    if (threadIdx.x == 0 && s.ids) s.ids[b] = id;
    if (threadIdx.x < 2 && s.logprobs) s.logprobs[2 * b + threadIdx.x] = 0;
    for (int64_t k = (int64_t)b * max(1, s.best) + threadIdx.x; k < (int64_t)(b + 1) * max(1, s.best); k += CHOOSE_THREADS) {
        if (s.best_ids) s.best_ids[k] = -1;
        if (s.best_logprobs) s.best_logprobs[k] = 0;
    }
}

/* The mass that `weigh` left of each group; of all. */
static __device__ uint64_t read_groups(const Sampling &s, Shared *sh, int b)
{
    uint64_t own = (int)threadIdx.x < s.groups ? s.mass[(int64_t)b * s.groups + threadIdx.x] : 0, all;
    sh->group[threadIdx.x] = own;
    block_scan(own, sh->part, &all);
    return all;
}

/* The drawn id of a row; *kept: the mass of what it was drawn of. The list, n of them, is sorted. */
template <typename X, bool VEC>
static __device__ int32_t choose_id(const Sampling &s, Shared *sh, const RowOf &row, const Tokens &of, int n, uint64_t *kept)
{
    const SampleRow *controls = &row.controls;
    const uint32_t  *keys = s.keys + (int64_t)row.b * SAMPLE_KEYS;
    bool             all = !controls->top_k, part = controls->top_p < 1u << 24;
    uint64_t         mass = all ? read_groups(s, sh, row.b) : 0, border = 0;
    if (all && !part && !controls->least) return draw_of_row<X>(s, sh, row.b, of, 0, 0, kept);
    add_up(sh, of, n);
    int first = kept_of_list(sh, row, of, s.state + row.b, n, mass);
    if (first > 0) return draw_of_list(sh, first, controls->least, keys, kept);
    if (!all || part) border = border_of_row<X, VEC>(s, sh, row, of, mass);
    weigh_kept<X, VEC>(s, sh, row.b, of, border, controls->least);
    return draw_of_row<X>(s, sh, row.b, of, border, controls->least, kept);
}

/* The likeliest by the logits, where the list of the scores isn't theirs. */
template <typename X, bool VEC>
static __device__ void find_best(const Sampling &s, Shared *sh, const RowOf &row, const Tokens &of, bool plain)
{
    int      b = row.b, best = min(s.best, s.vocab), n = 0;
    uint64_t mass;
    if (!plain) n = read_list(sh, s.logit_list + (int64_t)b * SAMPLE_LIST, s.state[b].listed_logits);
    if (n < best) {
        uint64_t last = narrow<X, VEC>(s, sh, b, of, best, UINT64_MAX, &mass);
        list_between<X, VEC>(s, sh, b, of, last, UINT64_MAX);
    }
    tell_best(s, sh, b, of.most, s.state[b].mass);
}

template <typename X, bool VEC> static __global__ void __launch_bounds__(CHOOSE_THREADS) sample_choose(Sampling s)
{
    __shared__ Shared sh;
    int               b = blockIdx.x;
    RowOf             row = row_of(s, b);
    if (row.slot < 0) return put_none(s, b, SAMPLE_IDLE);
    uint32_t key = block_most(s.score_keys + (int64_t)b * s.groups, s.groups, sh.scratch);
    uint32_t logit_key = block_most(s.logit_keys + (int64_t)b * s.groups, s.groups, sh.scratch);
    if (!sample_key_fits(key)) return put_none(s, b, SAMPLE_BAD);
    bool     plain = !row.changed(), told = is_told(s);
    Tokens   of = {!plain, sample_of_key(key), row.controls.scale}, of_logits = {false, sample_of_key(logit_key), 1};
    int      n = read_list(&sh, s.list + (int64_t)b * SAMPLE_LIST, s.state[b].listed);
    bool     told_best = plain && told && n >= min(s.best, s.vocab);
    uint64_t kept, mass = s.state[b].mass;
    if (told_best) tell_best(s, &sh, b, of_logits.most, mass);
    int32_t id = choose_id<X, VEC>(s, &sh, row, of, n, &kept);
    if (threadIdx.x == 0) {
        if (s.ids) s.ids[b] = id;
        s.next[row.slot] = id;
        if (s.seen) s.seen[row.slot * s.cols + id]++;
        if (s.logprobs) s.logprobs[2 * b] = sample_logprob(score_at<X>(s, b, of_logits, id), of_logits.most, 1, mass);
        if (s.logprobs) s.logprobs[2 * b + 1] = sample_logprob(score_at<X>(s, b, of, id), of.most, of.scale, kept);
    }
    if (told && !told_best) find_best<X, VEC>(s, &sh, row, of_logits, plain);
}

/* ---- launching ---- */

static Sampling sampling_of(const KernelArgs *args)
{
    const SampleAttrs *attrs = (const SampleAttrs *)args->attrs;
    const TensorView  *in = args->in, *out = args->out;
    Sampling           s = {};
    s.logits = in[SAMPLE_IN_LOGITS].data;
    s.rows = (int)in[SAMPLE_IN_LOGITS].type.dim[0];
    s.cols = in[SAMPLE_IN_LOGITS].type.dim[1];
    s.vocab = (int)(attrs->vocab ? attrs->vocab : s.cols);
    s.stride = sample_stride(s.vocab);
    s.group = (int)sample_group(s.vocab);
    s.groups = (int)cuda_div_up(s.vocab, s.group);
    s.best = (int)attrs->best;
    s.controls = (const float *)in[SAMPLE_IN_CONTROLS].data;
    s.keys = (const uint32_t *)in[SAMPLE_IN_KEYS].data;
    s.slots = (const int32_t *)in[SAMPLE_IN_SLOTS].data;
    s.slots_count = type_numel(&in[SAMPLE_IN_NEXT].type);
    s.bias_ids = (const int32_t *)in[SAMPLE_IN_BIAS_IDS].data;
    s.bias = (const float *)in[SAMPLE_IN_BIAS].data;
    s.num_bias = s.bias ? (int)in[SAMPLE_IN_BIAS].type.dim[1] : 0;
    s.ids = (int32_t *)out[SAMPLE_OUT_IDS].data;
    s.logprobs = (float *)out[SAMPLE_OUT_LOGPROBS].data;
    s.best_ids = (int32_t *)out[SAMPLE_OUT_BEST_IDS].data;
    s.best_logprobs = (float *)out[SAMPLE_OUT_BEST_LOGPROBS].data;
    s.next = (int32_t *)out[SAMPLE_OUT_NEXT].data;
    s.seen = (uint32_t *)out[SAMPLE_OUT_SEEN].data;
    return s;
}

/* What is of 8 bytes comes first. */
static void place(Sampling *s, void *workspace)
{
    s->state = (SampleState *)workspace;
    s->list = (uint64_t *)(s->state + s->rows);
    s->logit_list = s->list + (int64_t)s->rows * SAMPLE_LIST;
    s->mass = s->logit_list + (int64_t)s->rows * SAMPLE_LIST;
    s->score_keys = (uint32_t *)(s->mass + (int64_t)s->rows * s->groups);
    s->logit_keys = s->score_keys + (int64_t)s->rows * s->groups;
    s->scores = (float *)(s->logit_keys + (int64_t)s->rows * s->groups);
}

template <typename X, bool VEC> static void launch(const Sampling &s, cudaStream_t stream)
{
    enum { WARPS = 132 * 32 }; /* at once on the GPU that this is cut for; results are the same however it is */
    int64_t turns = cuda_div_up((int64_t)s.groups * s.rows, WARPS), blocks = cuda_div_up(s.groups, SCAN_WARPS * turns);
    dim3    grid((unsigned)blocks, (unsigned)s.rows);
    sample_scan<X, VEC><<<grid, SCAN_WARPS * 32, s.num_bias ? SCAN_WARPS * SAMPLE_STEP * sizeof(int32_t) : 0, stream>>>(s);
    sample_weigh<X, VEC><<<grid, SCAN_WARPS * 32, 0, stream>>>(s);
    sample_choose<X, VEC><<<(unsigned)s.rows, CHOOSE_THREADS, 0, stream>>>(s);
}

static Status sample_run(const KernelArgs *args)
{
    Sampling     s = sampling_of(args);
    cudaStream_t stream = cuda_stream(args);
    place(&s, args->workspace);
    CUDA_FLOAT(args->in[SAMPLE_IN_LOGITS].type.dtype, X, {
        if (s.cols % Pack<X>::N == 0 && is_aligned16(s.logits))
            launch<X, true>(s, stream);
        else
            launch<X, false>(s, stream);
    });
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(sample, {.dtypes = DT_SET_FLOAT, .run = sample_run, .name = "groups", .workspace = cuda_planned_workspace})
