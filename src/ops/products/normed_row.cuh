/* A row's norm, computed within the product that reads it: by each block, with the bits of rms_norm and add_rms_norm on CUDA
 * (ops/norms/rms_norm.cuh). This saves a launch. The row stays in shared memory. */
#pragma once

#include "device/cuda/vec_f16.cuh"
#include "ops/bulk.cuh"
#include "ops/products/few_rows.h"

enum { NORM_WARP = 256, NORM_WARPS = 32 /* the kernel of the norm: elements per warp; most warps */ };

/* Begins to load the norm's k weights, which nothing in the program writes, to shared memory at address w. */
template <typename T> static __device__ __forceinline__ void bring_norm(const RowsNorm &norm, int k, uint32_t w, int thread, int threads)
{
    for (int c = thread * 8; c < k; c += threads * 8) copy_async_at(w + c * 2, (const T *)norm.w + c, true);
    copy_commit();
}

/* Elements from c on of x, or of x + residual, rounded as it is stored. */
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

/* Norms the row, by `threads` threads (whole warps), for which `meet` is a barrier. The loads of bring_norm have arrived after the first
 * meet. put(c, v) receives 8 normed elements v at a time, from element c on. PACKS: packs that a thread loads at a time. row: room for x,
 * or for its sum with the residual; scratch: NORM_WARPS floats of shared memory. */
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
