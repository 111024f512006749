/* Shared by the attention kernels on the matrix units: softmax and gradients of a tile of 64 x 64 scores, in the register layout of
 * mma.sync and warpgroup products. A warp has 16 rows; a lane has two of them, eight apart, and pairs of columns. */
#pragma once

#include "ops/mma.cuh"

static __device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/* 2^x within 2 units in the last place; results below 2^-126 become 0. */
static __device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static const float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

/* Kernels work on products s = q k. The score is factor * s. With CAP, s is first replaced by t = tanh(inner s), and the score is softcap *
 * t; so only operator() and a slope in backward depend on CAP. */
template <bool CAP> struct ScoreOf {
    float factor, inner;

    __device__ __forceinline__ ScoreOf(const AttentionDims &a) : factor(CAP ? a.softcap : a.scale), inner(CAP ? a.scale / a.softcap : 1.0f)
    {
    }

    /* tanh within 3e-7: 1 - 2 / (e^2x + 1) */
    __device__ __forceinline__ float operator()(float s) const
    {
        return CAP ? 1.0f - __fdividef(2.0f, power_of_two(s * inner * (2 * LOG2E)) + 1.0f) : s;
    }
};

/* Adds one tile's scores to the running softmax: scores become exponentials. most: the largest score before scaling. The caller multiplies
 * its sums so far by `shrink`. */
template <bool MASK, bool CAP, int N>
static __device__ __forceinline__ void softmax_scores(float (&s)[N][4], float (&most)[2], float (&total)[2], float (&shrink)[2],
                                                      const ScoreOf<CAP> &score, int key, const int (&last)[2], const int (&first)[2])
{
    float scale2 = score.factor * LOG2E;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = most[half];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[n][2 * half + e] = score(s[n][2 * half + e]);
                if (MASK) {
                    int k = key + n * 8 + (threadIdx.x & 3) * 2 + e;
                    if (k > last[half] || k < first[half]) s[n][2 * half + e] = -INFINITY;
                }
                top = fmaxf(top, s[n][2 * half + e]);
            }
        top = quad_max(top);
        float base = top == -INFINITY ? 0 : top * scale2, sum = 0; /* if all keys are masked the exponentials are 0 */
        shrink[half] = power_of_two(most[half] * scale2 - base);
        most[half] = top;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float p = power_of_two(s[n][2 * half + e] * scale2 - base);
                s[n][2 * half + e] = p;
                sum += p;
            }
        total[half] = total[half] * shrink[half] + sum;
    }
}

template <int D> static __device__ __forceinline__ void scale_rows(float (&o)[D / 8][4], const float (&shrink)[2])
{
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= shrink[e >> 1];
}

/* softmax_scores; also multiplies o by `shrink`. */
template <int D, bool MASK, bool CAP>
static __device__ __forceinline__ void softmax_step(float (&s)[8][4], float (&o)[D / 8][4], float (&most)[2], float (&total)[2],
                                                    const ScoreOf<CAP> &score, int key, const int (&last)[2], const int (&first)[2])
{
    float shrink[2];
    softmax_scores<MASK>(s, most, total, shrink, score, key, last, first);
    scale_rows<D>(o, shrink);
}

/* The factor that turns a query's sums into its result. The head's sink, if any, is added to most and total. factor: ScoreOf.factor. */
static __device__ __forceinline__ float finish_row(const AttentionDims &a, int head, float factor, float &most, float &total)
{
    if (!a.sinks.data) return 1.0f / total;
    float sink = attention_number(a.sinks, head) / factor, now = fmaxf(most, sink), scale2 = factor * LOG2E;
    float shrink = power_of_two((most - now) * scale2);
    total = total * shrink + power_of_two((sink - now) * scale2);
    most = now;
    return shrink / total;
}

/* ---- bidirectional attention and biases ---- */

/* Which keys a query attends, and whether scores have a bias: a compile-time constant, so that the other forms cost plain causal attention
 * nothing. In bidirectional attention two tokens attend each other, or neither attends the other: with doc_start, a document ends at the
 * first token whose doc_start is greater. */
enum {
    FORM_CAUSAL, /* keys up to the query's own; no bias */
    FORM_OPEN,   /* bidirectional; no bias */
    FORM_BIASED, /* with a bias; bidirectional or not */
};

static inline int attention_form(const AttentionDims *a)
{
    return a->bias.data ? FORM_BIASED : a->bidirectional ? FORM_OPEN : FORM_CAUSAL;
}

/* The last key that query t attends. */
template <int FORM> static __device__ __forceinline__ int last_key(const AttentionDims &a, int b, int t)
{
    return FORM == FORM_CAUSAL ? t : attention_after_key(a, b, t, t) - 1;
}

/* The first query that attends a key. Past the row's end: INT_MAX. */
template <int FORM> static __device__ __forceinline__ int first_query(const AttentionDims &a, int b, int key)
{
    if (FORM == FORM_CAUSAL || !a.bidirectional) return key;
    return key < a.len ? attention_first_key(a, b, key, key) : INT_MAX;
}

/* The bias of a distance, to be added to products: the score is factor * (product + this). */
static __device__ __forceinline__ float product_bias(const AttentionDims &a, int head, int distance)
{
    return __fdividef(attention_bias(a, head, distance), a.scale);
}

/* Adds biases to products of queries and keys. diagonal: points to the bias of the lane's first product in its tile; biases of greater
 * distances follow. TURNED: rows are keys, columns are queries. */
template <bool TURNED, int N> static __device__ __forceinline__ void add_biases(float (&s)[N][4], const float *diagonal)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int down = (e >> 1) * 8 - n * 8 - (e & 1); /* row minus column */
            s[n][e] += diagonal[TURNED ? -down : down];
        }
}

/* Row minus column of the lane's first product in a tile. row: the warp's first row. */
static __device__ __forceinline__ int lane_diagonal(int row)
{
    int lane = threadIdx.x & 31;
    return row + (lane >> 2) - (lane & 3) * 2;
}

enum { TILE_DISTANCES = 2 * TILE_ROWS };

/* Biases of tiles of 64 x 64 pairs in shared memory, by distance. A thread fetches one bias of the next tile while this tile is multiplied.
 * Without ON the functions do nothing. */
template <bool ON> struct BiasTiles {
    float (*tiles)[TILE_DISTANCES];
    float fetched;

    /* distance: from the tile's first key to its first query. */
    __device__ __forceinline__ void fetch(const AttentionDims &a, int head, int distance)
    {
        if (ON && threadIdx.x < TILE_DISTANCES) fetched = product_bias(a, head, distance - (TILE_ROWS - 1) + (int)threadIdx.x);
    }
    __device__ __forceinline__ void keep(int stage)
    {
        if (ON && threadIdx.x < TILE_DISTANCES) tiles[stage][threadIdx.x] = fetched;
    }
    /* row: the warp's first row. */
    template <bool TURNED> __device__ __forceinline__ void add(float (&s)[8][4], int stage, int row) const
    {
        if (ON) add_biases<TURNED>(s, tiles[stage] + TILE_ROWS - 1 + (TURNED ? -lane_diagonal(row) : lane_diagonal(row)));
    }
};

/* A block's sums of dbias by rows of the bias, in shared memory. A tile's ds are added up along diagonals while the next tile is computed:
 * each thread sums one diagonal, which is one distance, and adds it to that distance's row. Only the first and the last row stand for many
 * distances: each thread keeps its own sums for these two. So every sum has one order. */
struct DistanceSums {
    enum { STRIDE = TILE_ROWS + 8 }; /* rows of ds: pairs of columns are stored without bank conflicts */
    float ds[TILE_ROWS][STRIDE], rows[ATTENTION_MOST_DISTANCES];
};

struct DistanceAdder {
    DistanceSums *sums;
    float         ends[2] = {0, 0}; /* this thread's sums of the first and the last row */
    int           distance = 0;     /* from the first key to the first query of the tile in sums->ds */

    __device__ __forceinline__      DistanceAdder(void *memory) : sums((DistanceSums *)memory) {}
    __device__ __forceinline__ void begin(const AttentionDims &a)
    {
        for (int i = threadIdx.x; i < a.bias_rows; i += MMA_THREADS) sums->rows[i] = 0;
    }
    /* Stores a warp's ds, of 16 queries from `row` of the tile on. rows: how many of the tile's queries exist. */
    __device__ __forceinline__ void keep(const float (&ds)[8][4], int row, int rows, int distance_)
    {
        int lane = threadIdx.x & 31;
        distance = distance_;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int  r = row + (lane >> 2) + half * 8;
                bool there = r < rows;
                *(float2 *)&sums->ds[r][n * 8 + (lane & 3) * 2] =
                    make_float2(there ? ds[n][2 * half] : 0.0f, there ? ds[n][2 * half + 1] : 0.0f);
            }
    }
    /* Adds the tile in sums->ds, after a barrier. */
    __device__ __forceinline__ void add(const AttentionDims &a)
    {
        int   ahead = (int)threadIdx.x - (TILE_ROWS - 1), row = attention_bias_row(a, distance + ahead); /* ahead: row minus column */
        float sum = 0;
        for (int r = max(0, ahead); r < min(TILE_ROWS, TILE_ROWS + ahead); r++) sum += sums->ds[r][r - ahead];
        if (row == 0)
            ends[0] += sum;
        else if (row == a.bias_rows - 1)
            ends[1] += sum;
        else
            sums->rows[row] += sum;
    }
    /* Adds the last tile, and stores the block's sums in a->bias_parts. */
    __device__ __forceinline__ void store(const AttentionDims &a, int b, int head, int block, int blocks)
    {
        float *kept = &sums->ds[0][0], *to = a.bias_parts + (((int64_t)b * a.num_heads + head) * blocks + block) * a.bias_rows;
        __syncthreads();
        add(a);
        __syncthreads();
        for (int i = 0; i < 2; i++) kept[i * MMA_THREADS + threadIdx.x] = ends[i];
        __syncthreads();
        if (threadIdx.x < min(2, a.bias_rows)) {
            float sum = 0;
            for (int i = 0; i < MMA_THREADS; i++) sum += kept[threadIdx.x * MMA_THREADS + i];
            sums->rows[threadIdx.x ? a.bias_rows - 1 : 0] = sum;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < a.bias_rows; i += MMA_THREADS) to[i] = sums->rows[i];
    }
};

/* ---- tiles whose sums start from zero and are added in order: every kernel gets the same bits ----
 *
 * Each operation is an intrinsic: else the compiler fuses a product and a sum in one kernel and not in another. */

/* 1 / x within 1 unit in the last place. */
static __device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Scores times this are the exponents of powers of two: e^(factor s) = 2^(tile_scale(factor) s). */
static __device__ __forceinline__ float tile_scale(float factor)
{
    return __fmul_rn(factor, LOG2E);
}

/* score(s) in intrinsics. */
template <bool CAP> static __device__ __forceinline__ float tile_score(const ScoreOf<CAP> &score, float s)
{
    if (!CAP) return s;
    float e = power_of_two(__fmul_rn(s, __fmul_rn(score.inner, 2 * LOG2E)));
    return fmaf(-2.0f, reciprocal(__fadd_rn(e, 1.0f)), 1.0f);
}

/* The softmax of one tile alone: products become exponentials. most: the largest score before scaling. HALVES 1: only a lane's first
 * row. */
template <bool MASK, int HALVES = 2, bool CAP>
static __device__ __forceinline__ void softmax_tile(float (&s)[8][4], float (&most)[2], float (&total)[2], const ScoreOf<CAP> &score,
                                                    int key, const int (&last)[2], const int (&first)[2])
{
    float scale2 = tile_scale(score.factor);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float &x = s[i / 2][2 * half + i % 2];
            int    k = key + i / 2 * 8 + (threadIdx.x & 3) * 2 + i % 2;
            x = MASK && (k > last[half] || k < first[half]) ? -INFINITY : tile_score(score, x);
            top = fmaxf(top, x);
        }
        top = quad_max(top);
        float base = top == -INFINITY ? 0 : __fmul_rn(top, scale2); /* if all keys are masked the exponentials are 0 */
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float &x = s[i / 2][2 * half + i % 2];
            x = power_of_two(fmaf(x, scale2, -base));
            sum += x;
        }
        most[half] = top;
        total[half] = quad_sum(sum);
    }
}

/* A query's running sums over tiles: the largest score, and the sum of exponentials relative to it. shrink: factor of the sums so far;
 * grow: factor of the tile that is added. */
typedef struct FoldedRow {
    float most, total, shrink, grow;
} FoldedRow;

/* Adds a tile's largest score and total. Returns false if all its keys are masked; then nothing changes. A NaN counts as unmasked. */
static __device__ __forceinline__ bool fold_tile(FoldedRow &row, float most, float total, float scale2)
{
    if (total == 0) return false;
    float now = fmaxf(row.most, most);
    row.shrink = power_of_two(__fmul_rn(row.most - now, scale2));
    row.grow = power_of_two(__fmul_rn(most - now, scale2));
    row.total = fmaf(total, row.grow, __fmul_rn(row.total, row.shrink));
    row.most = now;
    return true;
}

static __device__ __forceinline__ float fold_sum(const FoldedRow &row, float sum, float tile)
{
    return fmaf(tile, row.grow, __fmul_rn(sum, row.shrink));
}

/* The factor that turns a query's sums into its result. A query that attends no key gets NaN. */
static __device__ __forceinline__ float fold_end(const AttentionDims &a, int head, float factor, FoldedRow row)
{
    if (!a.sinks.data || row.total == 0) return 1.0f / row.total;
    fold_tile(row, __fdiv_rn(attention_number(a.sinks, head), factor), 1.0f, tile_scale(factor));
    return __fdiv_rn(row.shrink, row.total);
}

/* Replaces dp by ds = p (dp - delta) times the softcap's slope, where p = exp(score - lse). Rows are queries. */
template <bool MASK, bool CAP>
static __device__ __forceinline__ void query_gradients(float (&s)[8][4], float (&dp)[8][4], const ScoreOf<CAP> &score,
                                                       const float (&lse2)[2], const float (&delta)[2], int     key, const int (&last)[2],
                                                       const int (&first)[2])
{
    float scale2 = score.factor * LOG2E;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int   half = e >> 1, k = key + n * 8 + (threadIdx.x & 3) * 2 + (e & 1);
            float t = score(s[n][e]), p = power_of_two(t * scale2 - lse2[half]);
            if (MASK && (k > last[half] || k < first[half])) p = 0;
            dp[n][e] = MASK && p == 0 ? 0 : p * (dp[n][e] - delta[half]);
            if (CAP) dp[n][e] *= 1.0f - t * t;
        }
}

/* For each query of a tile the values that its gradients need. In this tile queries are columns, keys are rows. */
typedef struct QueryColumns {
    float lse2[2][TILE_ROWS], delta[2][TILE_ROWS];
    int   first[2][TILE_ROWS]; /* the first key that a query attends; INT_MAX past the row's end */
} QueryColumns;

static __device__ __forceinline__ void load_columns(const AttentionDims &a, QueryColumns *c, int stage, int b, int head, int query)
{
    int i = threadIdx.x, t = query + i;
    if (i >= TILE_ROWS) return;
    int64_t at = ((int64_t)b * a.num_heads + head) * a.len + min(t, a.len - 1);
    c->lse2[stage][i] = a.lse[at] * LOG2E;
    c->delta[stage][i] = a.delta[at];
    c->first[stage][i] = t >= a.len ? INT_MAX : attention_first_key(a, b, t, t);
}

/* s becomes p, dp becomes ds; both are (keys, queries). Without MASK each query attends each key. least: the first query that attends each
 * of the lane's two keys (first_query). */
template <bool MASK, bool CAP>
static __device__ __forceinline__ void key_gradients(float (&s)[8][4], float (&dp)[8][4], const ScoreOf<CAP> &score, const QueryColumns *c,
                                                     int stage, int query, int key, const int (&least)[2])
{
    int   lane = threadIdx.x & 31;
    float scale2 = score.factor * LOG2E;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int   col = n * 8 + (lane & 3) * 2 + (e & 1), k = key + (lane >> 2) + (e >> 1) * 8;
            float t = score(s[n][e]), p = power_of_two(t * scale2 - c->lse2[stage][col]);
            if (MASK && (least[e >> 1] > query + col || k < c->first[stage][col])) p = 0;
            s[n][e] = p;
            dp[n][e] = MASK && p == 0 ? 0 : p * (dp[n][e] - c->delta[stage][col]);
            if (CAP) dp[n][e] *= 1.0f - t * t;
        }
}

/* One past the last query that attends keys [row, row + 64): counts tiles from `row` on as long as their first query's document and window
 * begin before the keys end. */
static __device__ __forceinline__ int last_query(const AttentionDims &a, int b, int row)
{
    int least = 1, most = (a.len - row + TILE_ROWS - 1) / TILE_ROWS; /* bounds of the tile count, which is at least 1 */
    while (least < most) {
        int tiles = (least + most + 1) / 2, t = row + (tiles - 1) * TILE_ROWS;
        if (attention_first_key(a, b, t, t) < row + TILE_ROWS)
            least = tiles;
        else
            most = tiles - 1;
    }
    return min(row + most * TILE_ROWS, a.len);
}

/* For the lane's two keys among a warp's 16, which begin at `key`: the first query that attends each. */
template <int FORM> static __device__ __forceinline__ void first_queries(const AttentionDims &a, int b, int key, int (&least)[2])
{
    for (int half = 0; half < 2; half++) least[half] = first_query<FORM>(a, b, key + (int)(threadIdx.x & 31) / 4 + half * 8);
}

/* The first tile of queries that attends keys [row, row + 64). */
template <int FORM> static __device__ __forceinline__ int first_query_tile(const AttentionDims &a, int b, int row)
{
    return FORM == FORM_CAUSAL ? row : first_query<FORM>(a, b, row) / TILE_ROWS * TILE_ROWS;
}

/* One past the last key that queries [row, row + ROWS) attend, rounded up to a tile. */
template <int FORM, int ROWS = TILE_ROWS> static __device__ __forceinline__ int keys_end(const AttentionDims &a, int b, int row)
{
    if (FORM == FORM_CAUSAL || !a.bidirectional) return min(row + ROWS, a.len);
    return last_query(a, b, (min(row + ROWS, a.len) - 1) & ~(TILE_ROWS - 1));
}
