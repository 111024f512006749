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

/* Kernels work on products s = q k. The score is factor * s. With CAP, s is first replaced by t = tanh(inner s), and the score is
 * softcap * t; so only this function and a slope in backward depend on CAP. */
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

/* softmax_scores, and o rescaled by `shrink`. */
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

/* s becomes p, dp becomes ds; both are (keys, queries). Without MASK each query attends each key. */
template <bool MASK, bool CAP>
static __device__ __forceinline__ void key_gradients(float (&s)[8][4], float (&dp)[8][4], const ScoreOf<CAP> &score, const QueryColumns *c,
                                                     int stage, int query, int key)
{
    int   lane = threadIdx.x & 31;
    float scale2 = score.factor * LOG2E;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int   col = n * 8 + (lane & 3) * 2 + (e & 1), k = key + (lane >> 2) + (e >> 1) * 8;
            float t = score(s[n][e]), p = power_of_two(t * scale2 - c->lse2[stage][col]);
            if (MASK && (k > query + col || k < c->first[stage][col])) p = 0;
            s[n][e] = p;
            dp[n][e] = MASK && p == 0 ? 0 : p * (dp[n][e] - c->delta[stage][col]);
            if (CAP) dp[n][e] *= 1.0f - t * t;
        }
}

/* One past the last query that attends keys [row, row + 64): counts tiles from `row` on as long as their first query's document and window
 * begin before the keys end. */
static __device__ __forceinline__ int last_query(const AttentionDims &a, int b, int row)
{
    int least = 1, most = (a.len - row + TILE_ROWS - 1) / TILE_ROWS; /* tiles; the first always counts */
    while (least < most) {
        int tiles = (least + most + 1) / 2, t = row + (tiles - 1) * TILE_ROWS;
        if (attention_first_key(a, b, t, t) < row + TILE_ROWS)
            least = tiles;
        else
            most = tiles - 1;
    }
    return min(row + most * TILE_ROWS, a.len);
}
