/* A row's norm where a product reads it: each block makes it of the row, to the bit as rms_norm and add_rms_norm on CUDA make it
 * (ops/norms/rms_norm.cuh), which saves a launch. The row stays in shared memory. */
#pragma once

#include "device/cuda/vec_f16.cuh"
#include "ops/bulk.cuh"
#include "ops/products/few_rows.h"

enum { NORM_WARP = 256, NORM_WARPS = 32 /* of the norm's kernel: numbers of each, at most so many */ };

/* Begins to bring the norm's weights, which nothing of the program writes. row: k numbers of shared memory, w behind them. */
template <typename T> static __device__ __forceinline__ void bring_norm(const RowsNorm &norm, int k, uint32_t w, int thread, int threads)
{
    for (int c = thread * 8; c < k; c += threads * 8) copy_async_at(w + c * 2, (const T *)norm.w + c, true);
    copy_commit();
}

/* Numbers from c on of x, or of the sum as it is stored. */
template <typename T> static __device__ __forceinline__ void load_summed(const RowsNorm &norm, int c, float (&v)[8])
{
    float u[8];
    load_pack((const T *)norm.x + c, v);
    if (!norm.residual) return;
    load_pack((const T *)norm.residual + c, u);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = to_float(from_float<T>(v[i] + u[i]));
    if (norm.sum && blockIdx.x == 0) store_pack((T *)norm.sum + c, v);
}

/* The normed row, by `threads` threads, whole warps, all of which `meet` lets wait for one another; what bring_norm brings is there after
 * the first time. It is put(c, numbers), 8 from c on at a time. PACKS: of them that a thread asks for at a time. row: room for x as it is
 * summed; scratch: NORM_WARPS floats of shared memory. */
template <typename T, int PACKS, typename F, typename P>
static __device__ __forceinline__ void norm_row(const RowsNorm &norm, int k, T *row, const T *w, float *scratch, int thread, int threads,
                                                F meet, P put)
{
    int   lane = thread & 31, warps = (k + NORM_WARP - 1) / NORM_WARP, step = threads / 32;
    float v[PACKS][8], u[8];
    for (int first = thread / 32; first < warps; first += PACKS * step) {
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            int c = (first + i * step) * NORM_WARP + lane * 8;
            if (c < k) load_summed<T>(norm, c, v[i]);
        }
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            int   warp = first + i * step, c = warp * NORM_WARP + lane * 8;
            float sum = 0;
            if (c < k) {
                store_pack(row + c, v[i]);
#pragma unroll
                for (int e = 0; e < 8; e++) sum += v[i][e] * v[i][e];
            }
            sum = warp_sum(sum);
            if (lane == 0 && warp < warps) scratch[warp] = sum;
        }
    }
    copy_wait<0>();
    meet();
    float rstd = rsqrtf(warp_sum(lane < warps ? scratch[lane] : 0.0f) / (float)(int64_t)k + norm.eps);
    for (int c = thread * 8; c < k; c += threads * 8) {
        load_pack(row + c, v[0]);
        load_pack(w + c, u);
#pragma unroll
        for (int i = 0; i < 8; i++) v[0][i] = (u[i] + norm.offset) * (v[0][i] * rstd);
        put(c, v[0]);
    }
    meet();
}
