/* What the attention kernels on the matrix units share: the softmax and the gradients of a tile of 64 x 64 scores, held
 * as mma.sync and warpgroup products leave them (a warp has 16 rows; a lane two of them, eight apart, and pairs of
 * columns). */
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

static const float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

/* One tile's scores into the running softmax. most: of raw scores; o is scaled to the new one. */
template <int D, bool MASK>
static __device__ __forceinline__ void softmax_step(float (&s)[8][4], float (&o)[D / 8][4], float (&most)[2], float (&total)[2],
                                                    float scale2, int key, const int (&last)[2], const int (&first)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = most[half];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (MASK) {
                    int k = key + n * 8 + (threadIdx.x & 3) * 2 + e;
                    if (k > last[half] || k < first[half]) s[n][2 * half + e] = -INFINITY;
                }
                top = fmaxf(top, s[n][2 * half + e]);
            }
        top = quad_max(top);
        float base = top == -INFINITY ? 0 : top * scale2, shrink = exp2f(most[half] * scale2 - base), sum = 0;
        most[half] = top;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float p = exp2f(s[n][2 * half + e] * scale2 - base);
                s[n][2 * half + e] = p;
                sum += p;
            }
        total[half] = total[half] * shrink + sum;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            o[n][2 * half] *= shrink;
            o[n][2 * half + 1] *= shrink;
        }
    }
}

/* p = exp(scale s - lse) and ds = p (dp - delta), in place of s and dp; rows are queries. */
template <bool MASK>
static __device__ __forceinline__ void query_gradients(float (&s)[8][4], float (&dp)[8][4], float scale2, const float (&lse2)[2],
                                                       const float (&delta)[2], int key, const int (&last)[2], const int (&first)[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int   half = e >> 1, k = key + n * 8 + (threadIdx.x & 3) * 2 + (e & 1);
            float p = exp2f(s[n][e] * scale2 - lse2[half]);
            if (MASK && (k > last[half] || k < first[half])) p = 0;
            dp[n][e] = p == 0 ? 0 : p * (dp[n][e] - delta[half]);
        }
}

/* What a tile of queries brings for its columns; rows are keys here. */
typedef struct QueryColumns {
    float lse2[2][TILE_ROWS], delta[2][TILE_ROWS];
    int   first[2][TILE_ROWS]; /* the first key a query attends; past the end: none */
} QueryColumns;

static __device__ __forceinline__ void load_columns(const AttentionDims &a, QueryColumns *c, int stage, int b, int head, int query)
{
    int i = threadIdx.x, t = query + i;
    if (i >= TILE_ROWS) return;
    int64_t at = ((int64_t)b * a.num_heads + head) * a.len + min(t, a.len - 1);
    c->lse2[stage][i] = a.lse[at] * LOG2E;
    c->delta[stage][i] = a.delta[at];
    c->first[stage][i] = t >= a.len ? INT_MAX : a.doc_start ? max(0, a.doc_start[b * a.len + t]) : 0;
}

/* s -> p, dp -> ds; s and dp are (keys, queries). */
static __device__ __forceinline__ void key_gradients(float (&s)[8][4], float (&dp)[8][4], float scale2, const QueryColumns *c, int stage,
                                                     int query, int key)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int   col = n * 8 + (lane & 3) * 2 + (e & 1), k = key + (lane >> 2) + (e >> 1) * 8;
            float p = exp2f(s[n][e] * scale2 - c->lse2[stage][col]);
            if (k > query + col || k < c->first[stage][col]) p = 0;
            s[n][e] = p;
            dp[n][e] = p == 0 ? 0 : p * (dp[n][e] - c->delta[stage][col]);
        }
}

/* Queries that attend keys [row, row + 64): tiles from `row` on while their documents begin before the keys end. */
static __device__ __forceinline__ int last_query(const AttentionDims &a, int b, int row)
{
    int end = row;
    for (int t = row; t < a.len; t += TILE_ROWS) {
        int first = a.doc_start ? a.doc_start[b * a.len + t] : 0;
        if (first >= row + TILE_ROWS) break;
        end = t + TILE_ROWS;
    }
    return min(end, a.len);
}
