/* The last launch of `sample` (sample.cu): a thread block chooses a row's token. */
#pragma once

#include "ops/sample/sample_rows.cuh"

struct Shared {
    uint64_t list[SAMPLE_LIST]; /* tokens, as sample_order */
    uint64_t mass[SAMPLE_LIST]; /* mass[i]: total mass of list[0] to list[i] */
    uint64_t group[SAMPLE_MOST_GROUPS];
    uint64_t part[CHOOSE_WARPS], found, found_mass;
    uint64_t pivot_mass[3];
    uint32_t pivot_count[3], count, scratch[32];
    int32_t  id;
};

enum { FEW = 128, FEW_EACH = CHOOSE_THREADS / FEW };

static __device__ __forceinline__ uint32_t few_sum(uint32_t x)
{
#pragma unroll
    for (int offset = 1; offset < FEW_EACH; offset <<= 1) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

/* Sorts at most FEW tokens: each moves to the index that is the number of larger ones, counted by FEW_EACH threads. */
static __device__ void sort_few(Shared *sh, int n)
{
    int      i = threadIdx.x / FEW_EACH;
    uint64_t own = i < n ? sh->list[i] : 0;
    uint32_t before = 0;
    for (int k = threadIdx.x % FEW_EACH; k < n; k += FEW_EACH) before += sh->list[k] > own;
    before = few_sum(before);
    __syncthreads();
    if (i < n) sh->list[before] = own;
    __syncthreads();
}

/* Sorts the first n tokens of the list, the largest first (bitonic sort, by all threads). Pairs less than 64 apart are within one warp. */
static __device__ void sort_list(Shared *sh, int n)
{
    if (n <= FEW) return sort_few(sh, n);
    int size = 2 * FEW;
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

/* Fills sh->mass for the first n tokens of the list. */
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

/* Index of the first of n listed tokens with which `count` tokens or the mass `wanted` are reached; count_before and mass_before come
 * before the list. -1: none. */
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

/* Calls f(order, score) for each token of the row. */
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

/* Lists the row's tokens with an order in [low, above), at most SAMPLE_LIST, and sorts them. Returns how many. */
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

/* For each of three pivots: number and mass of the tokens whose order is at least the pivot. */
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

/* Returns the order of the token with which `count` tokens or the mass `wanted` are reached, and *mass up to it. Each pass over the row
 * cuts the remaining range of orders into quarters, until its tokens fit into the list. */
template <typename X, bool VEC>
static __device__ uint64_t narrow(const Sampling &s, Shared *sh, int b, const Tokens &of, int64_t count, uint64_t wanted, uint64_t *mass)
{
    uint64_t low = 0, above = sample_order(of.most, 0) + 1, mass_above = 0;
    int64_t  count_above = 0, count_low = s.vocab;
    bool     weighed = wanted != UINT64_MAX;
    float    zero = of.most - 31 / of.scale;
    if (weighed && count >= s.vocab && sample_distance(zero, of.most, of.scale) <= -30) /* below `zero` all weights are 0 */
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

/* Finds the border of a row with top-k by passes over the row, if the list isn't sufficient. */
template <typename X, bool VEC> static __device__ uint64_t border_of_row(const Sampling &s, Shared *sh, const RowOf &row, const Tokens &of)
{
    uint64_t all, border = narrow<X, VEC>(s, sh, row.b, of, row.controls.top_k, UINT64_MAX, &all);
    if (row.controls.top_p == 1u << 24) return border;
    uint64_t pivot[3] = {border, border, border}; /* narrow hasn't summed weights, as it was asked for a count */
    measure<X, VEC>(s, sh, row.b, of, pivot, true);
    all = sh->pivot_mass[0];
    __syncthreads();
    uint64_t mass, last = narrow<X, VEC>(s, sh, row.b, of, s.vocab, sample_wanted(&row.controls, all), &mass);
    return max(last, border);
}

/* Number of tokens that top-k and top-p keep, from the sorted list of n, for a row with top-k; -1: the list isn't sufficient. */
static __device__ int kept_of_list(Shared *sh, const RowOf &row, const Tokens &of, const SampleState *state, int n)
{
    const SampleRow *controls = &row.controls;
    /* true: all tokens that aren't listed have weight 0 */
    bool whole = sample_distance(sample_of_key(state->least), of.most, of.scale) <= -29;
    if (!n || (n < controls->top_k && !whole)) return -1;
    int first = controls->top_k < n ? (int)controls->top_k : n;
    if (controls->top_p == 1u << 24) return first;
    int last = first_reaching(sh, first, INT64_MAX, sample_wanted(controls, sh->mass[first - 1]), 0, 0);
    return last < 0 ? -1 : last + 1;
}

/* Weight of token i of the list. */
static __device__ __forceinline__ uint64_t listed_mass(const Shared *sh, int i)
{
    return sh->mass[i] - (i ? sh->mass[i - 1] : 0);
}

/* Draws an id from the first n listed tokens whose weight is at least `least`. *kept: their mass. */
static __device__ int32_t draw_of_list(Shared *sh, int n, uint64_t least, const uint32_t *keys, uint64_t *kept)
{
    uint64_t sum = 0;
    for (int first = 0; first < n; first += CHOOSE_THREADS) {
        int      i = first + (int)threadIdx.x;
        uint64_t own = i < n ? listed_mass(sh, i) : 0, all;
        block_scan(own >= least ? own : 0, sh->part, &all);
        sum += all;
    }
    uint64_t drawn = sample_draw(keys, sum);
    *kept = sum;
    for (int i = threadIdx.x / FEW_EACH; i - (int)threadIdx.x / FEW_EACH < n;
         i += FEW) { /* whole warps stay in the loop: some threads have no token */
        int32_t  id = i < n ? sample_order_id(sh->list[i]) : -1;
        uint64_t own = i < n ? listed_mass(sh, i) : 0, upto = 0;
        for (int k = threadIdx.x % FEW_EACH; k < n; k += FEW_EACH) {
            uint64_t weight = listed_mass(sh, k);
            upto += weight >= least && sample_order_id(sh->list[k]) <= id ? weight : 0;
        }
#pragma unroll
        for (int offset = 1; offset < FEW_EACH; offset <<= 1) upto += __shfl_xor_sync(ALL_LANES, (unsigned long long)upto, offset);
        if (i < n && own >= least && upto > drawn && upto - own <= drawn) sh->id = id;
    }
    __syncthreads();
    return sh->id;
}

/* Fills sh->group with the mass of each group's kept tokens, for draw_of_row. */
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

/* Score of token `id` of the row. */
template <typename X> static __device__ __forceinline__ float score_at(const Sampling &s, int b, const Tokens &of, int id)
{
    return of.scores ? s.scores[b * s.stride + id] : to_float(((const X *)s.logits)[b * s.cols + id]);
}

/* Draws an id from all kept tokens, by the masses in sh->group. *kept: their sum. */
template <typename X>
static __device__ int32_t draw_of_row(const Sampling &s, Shared *sh, int b, const Tokens &of, uint64_t border, uint64_t least,
                                      uint64_t *kept)
{
    uint64_t own = (int)threadIdx.x < s.groups ? sh->group[threadIdx.x] : 0, upto = block_scan(own, sh->part, kept);
    uint64_t drawn = sample_draw(s.keys + (int64_t)b * SAMPLE_KEYS, *kept);
    if (upto > drawn && upto - own <= drawn) sh->found = threadIdx.x, sh->found_mass = drawn - (upto - own);
    __syncthreads();
    int first = (int)sh->found * s.group, end = min(s.vocab, first + s.group);
    drawn = sh->found_mass;
    for (int base = first; base < end; base += CHOOSE_THREADS) {
        int      id = base + (int)threadIdx.x;
        uint64_t weight = 0, all;
        if (id < end) {
            float score = score_at<X>(s, b, of, id);
            weight = sample_order(score, id) >= border ? sample_weight(score, of.most, of.scale) : 0;
            weight = weight < least ? 0 : weight;
        }
        upto = block_scan(weight, sh->part, &all);
        if (upto > drawn && upto - weight <= drawn) sh->id = id;
        if (all > drawn) break;
        drawn -= all;
    }
    __syncthreads();
    return sh->id;
}

/* Copies a list of the row and sorts it. Returns the number of tokens; 0: the list is incomplete or empty. */
static __device__ int read_list(Shared *sh, const Listing &from)
{
    uint32_t count = *from.count;
    if (count > SAMPLE_LIST) return 0;
    for (int i = threadIdx.x; i < (int)count; i += CHOOSE_THREADS) sh->list[i] = from.list[i];
    __syncthreads();
    sort_list(sh, (int)count);
    return (int)count;
}

/* Fills in the outputs with the likeliest tokens, from the list sorted by logits. */
static __device__ void tell_best(const Sampling &s, const Shared *sh, int b, float most, uint64_t mass)
{
    for (int k = threadIdx.x; k < max(1, s.best); k += CHOOSE_THREADS) {
        bool    there = k < min(s.best, s.vocab);
        int64_t at = (int64_t)b * max(1, s.best) + k;
        if (s.best_ids) s.best_ids[at] = there ? sample_order_id(sh->list[k]) : -1;
        if (s.best_logprobs) s.best_logprobs[at] = there ? sample_logprob(sample_order_score(sh->list[k]), most, 1, mass) : 0;
    }
}

/* Outputs of a row without a choice. id: SAMPLE_IDLE or SAMPLE_BAD. */
static __device__ void put_none(const Sampling &s, int b, int32_t id)
{
    if (threadIdx.x == 0 && s.ids) s.ids[b] = id;
    if (threadIdx.x < 2 && s.logprobs) s.logprobs[2 * b + threadIdx.x] = 0;
    for (int64_t k = (int64_t)b * max(1, s.best) + threadIdx.x; k < (int64_t)(b + 1) * max(1, s.best); k += CHOOSE_THREADS) {
        if (s.best_ids) s.best_ids[k] = -1;
        if (s.best_logprobs) s.best_logprobs[k] = 0;
    }
}

/* Finds the border for top-p without top-k in the sorted list of tokens that may be it. Adds the mass of listed tokens that are kept to
 * sh->group. 0: the border isn't listed. */
static __device__ uint64_t border_listed(const Sampling &s, Shared *sh, const RowOf &row, const Tokens &of, uint64_t wanted)
{
    uint64_t above = s.state[row.b].above;
    int      n = read_list(sh, border_listing(s, row));
    if (!n || above >= wanted) return 0;
    add_up(sh, of, n);
    int last = first_reaching(sh, n, INT64_MAX, wanted, 0, above);
    if (last < 0) return 0;
    for (int i = threadIdx.x; i <= last; i += CHOOSE_THREADS) {
        uint64_t weight = weight_in(of, sh->list[i]), *group = &sh->group[sample_order_id(sh->list[i]) / s.group];
        if (weight >= row.controls.least) atomicAdd((unsigned long long *)group, (unsigned long long)weight);
    }
    __syncthreads();
    return sh->list[last];
}

/* Draws the id for a row without top-k. *kept: mass of the tokens it was drawn from. */
template <typename X, bool VEC>
static __device__ int32_t choose_by_mass(const Sampling &s, Shared *sh, const RowOf &row, const Tokens &of, uint64_t *kept)
{
    const SampleRow *controls = &row.controls;
    uint64_t         border = 0;
    if ((int)threadIdx.x < s.groups) sh->group[threadIdx.x] = s.mass[(int64_t)row.b * s.groups + threadIdx.x];
    __syncthreads();
    if (controls->top_p < 1u << 24) {
        uint64_t mass, wanted = sample_wanted(controls, s.state[row.b].all);
        border = border_listed(s, sh, row, of, wanted);
        if (!border) {
            border = narrow<X, VEC>(s, sh, row.b, of, s.vocab, wanted, &mass);
            weigh_kept<X, VEC>(s, sh, row.b, of, border, controls->least);
        }
    }
    return draw_of_row<X>(s, sh, row.b, of, border, controls->least, kept);
}

/* Draws the id for a row with top-k, from the sorted list of n tokens if that is sufficient. *kept: mass of the tokens it was drawn
 * from. */
template <typename X, bool VEC>
static __device__ int32_t choose_by_count(const Sampling &s, Shared *sh, const RowOf &row, const Tokens &of, int n, uint64_t *kept)
{
    add_up(sh, of, n);
    int first = kept_of_list(sh, row, of, s.state + row.b, n);
    if (first > 0) return draw_of_list(sh, first, row.controls.least, s.keys + (int64_t)row.b * SAMPLE_KEYS, kept);
    uint64_t border = border_of_row<X, VEC>(s, sh, row, of);
    weigh_kept<X, VEC>(s, sh, row.b, of, border, row.controls.least);
    return draw_of_row<X>(s, sh, row.b, of, border, row.controls.least, kept);
}

/* Finds the likeliest tokens by logits and fills in their outputs. listed: the sorted list starts with them. */
template <typename X, bool VEC>
static __device__ void find_best(const Sampling &s, Shared *sh, const RowOf &row, const Tokens &of, bool listed)
{
    int      b = row.b, best = min(s.best, s.vocab);
    uint64_t mass;
    if (best && !listed && row.changed()) listed = read_list(sh, logit_listing(s, b)) >= best;
    if (best && !listed) {
        uint64_t last = narrow<X, VEC>(s, sh, b, of, best, UINT64_MAX, &mass);
        list_between<X, VEC>(s, sh, b, of, last, UINT64_MAX);
    }
    tell_best(s, sh, b, of.most, s.state[b].mass);
}

/* The row's first token by score, as sample_order. */
static __device__ uint64_t first_of(const Sampling &s, Shared *sh, int b)
{
    uint64_t own = (int)threadIdx.x < s.groups ? s.firsts[(int64_t)b * s.groups + threadIdx.x] : 0;
    uint32_t key = block_most((uint32_t)(own >> 32), sh->scratch);
    return (uint64_t)key << 32 | block_most(own >> 32 == key ? (uint32_t)own : 0, sh->scratch);
}

template <typename X, bool VEC> static __global__ void __launch_bounds__(CHOOSE_THREADS) sample_choose(Sampling s)
{
    __shared__ Shared sh;
    int               b = blockIdx.x;
    release_launches();
    RowOf row = await_row(s, b);
    if (row.slot < 0) return put_none(s, b, SAMPLE_IDLE);
    uint64_t first = first_of(s, &sh, b);
    if (!sample_key_fits((uint32_t)(first >> 32))) return put_none(s, b, SAMPLE_BAD);
    bool     plain = !row.changed(), told = is_told(s), one = row.controls.top_k == 1, best_listed = plain && told && s.best;
    Tokens   of = {!plain, sample_order_score(first), row.controls.scale}, of_logits = {false, sample_of_key(s.state[b].most_logit), 1};
    int      n = (row.controls.top_k && !one) || best_listed ? read_list(&sh, listing(s, b)) : 0;
    uint64_t kept = SAMPLE_ONE, mass = s.state[b].mass;
    int32_t  id = sample_order_id(first);
    best_listed &= n >= min(s.best, s.vocab);
    if (best_listed) find_best<X, VEC>(s, &sh, row, of_logits, true);
    if (!row.controls.top_k)
        id = choose_by_mass<X, VEC>(s, &sh, row, of, &kept);
    else if (!one)
        id = choose_by_count<X, VEC>(s, &sh, row, of, n, &kept);
    if (threadIdx.x == 0) {
        if (s.ids) s.ids[b] = id;
        s.next[row.slot] = id;
        if (s.seen) s.seen[row.slot * s.cols + id]++;
        if (s.logprobs) s.logprobs[2 * b] = sample_logprob(score_at<X>(s, b, of_logits, id), of_logits.most, 1, mass);
        if (s.logprobs) s.logprobs[2 * b + 1] = sample_logprob(score_at<X>(s, b, of, id), of.most, of.scale, kept);
    }
    if (told && !best_listed) find_best<X, VEC>(s, &sh, row, of_logits, false);
}
