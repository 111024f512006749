/* Softmax and loss of rows of logits on CUDA; a block has a row. */
#pragma once

#include "device/cuda/vec.cuh"
#include "ops/attrs.h"

#include <float.h>

enum { ROW_THREADS = 1024 };

/* exp(x); relative error 2^-22 times max(1, |x| / 32) */
static __device__ __forceinline__ float fast_exp(float x)
{
    return exp2f(x * 1.4426950408889634f);
}

/* Calls f(index of the first element, array of values) for each piece of a row that this thread has: packs of 16 bytes if the row is
 * aligned (VEC), else single elements. */
template <typename T, bool VEC, typename F> static __device__ __forceinline__ void each_piece(const T *row, int64_t cols, F f)
{
    enum { N = VEC ? (int)Pack<T>::N : 1 };
    for (int64_t c = (int64_t)threadIdx.x * N; c < cols; c += ROW_THREADS * N) {
        float x[N];
        if (VEC)
            load_n<VEC ? (int)N : (int)Pack<T>::N>(row + c, x);
        else
            x[0] = to_float(row[c]);
        f(c, x);
    }
}

/* cap tanh(x / cap); without CAP x itself. */
template <bool CAP> static __device__ __forceinline__ float capped(float x, float cap)
{
    return CAP ? cap * tanhf(x / cap) : x;
}

/* Returns the largest element and the sum of exp(x - largest) to every thread; with CAP, elements are capped first. A thread's running
 * maximum starts from the least finite number: its pieces may be all -inf, and -inf - -inf is NaN. */
template <typename T, bool VEC, bool CAP>
static __device__ __forceinline__ void row_softmax(const T *row, int64_t cols, float cap, float *scratch, float *out_most, float *out_sum)
{
    enum { N = VEC ? (int)Pack<T>::N : 1 };
    float most = -FLT_MAX, sum = 0;
    each_piece<T, VEC>(row, cols, [&](int64_t, float *x) {
        if (CAP) {
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = capped<CAP>(x[i], cap);
        }
        float piece = x[0];
#pragma unroll
        for (int i = 1; i < N; i++) piece = fmaxf(piece, x[i]);
        if (piece > most) {
            sum *= fast_exp(most - piece);
            most = piece;
        }
        float add = 0;
#pragma unroll
        for (int i = 0; i < N; i++) add += fast_exp(x[i] - most);
        sum += add;
    });
    *out_most = block_max(most, scratch);
    *out_sum = block_sum(sum * fast_exp(most - *out_most), scratch);
}

/* Computes row blockIdx.x: loss, lse and hit (each NULL: not wanted). If dlosses isn't NULL, logits become dlogits in place. CAP: logits
 * are capped first, and dlogits include the cap's slope. */
template <typename T, bool VEC, bool CAP>
static __global__ void __launch_bounds__(ROW_THREADS)
    loss_rows(T *logits, const int32_t *labels, const float *dlosses, int64_t cols, float *losses, float *lse, float *hits, float cap)
{
    __shared__ float scratch[32];
    enum { N = VEC ? (int)Pack<T>::N : 1 };
    T      *row = logits + (int64_t)blockIdx.x * cols;
    int32_t label = labels[blockIdx.x];
    bool    known = label >= 0 && label < cols, ignored = label == IGNORE_INDEX;
    float   most, sum, target = known ? capped<CAP>(to_float(row[label]), cap) : NAN;
    if (ignored && !lse && dlosses) {
        most = sum = 1; /* dlogits will be zeros */
    } else {
        row_softmax<T, VEC, CAP>(row, cols, cap, scratch, &most, &sum);
    }
    if (threadIdx.x == 0 && losses) losses[blockIdx.x] = ignored ? 0 : most + logf(sum) - target;
    if (threadIdx.x == 0 && lse) lse[blockIdx.x] = most + logf(sum);
    if (threadIdx.x == 0 && hits) hits[blockIdx.x] = target >= most ? 1 : 0;
    if (!dlosses) return;
    float dloss = known ? dlosses[blockIdx.x] : NAN, scale = dloss / sum;
    __syncthreads(); /* all threads have read `target` */
    each_piece<T, VEC>(row, cols, [&](int64_t c, float *x) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float t = CAP ? tanhf(x[i] / cap) : 0;
            x[i] = ignored ? 0 : scale * fast_exp((CAP ? cap * t : x[i]) - most);
            if (c + i == label) x[i] -= dloss;
            if (CAP) x[i] *= 1.0f - t * t;
        }
        if (VEC)
            store_n<VEC ? (int)N : (int)Pack<T>::N>(row + c, x);
        else
            row[c] = from_float<T>(x[0]);
    });
}

/* cap 0: logits aren't capped. */
template <typename T>
static void launch_loss_rows(T *logits, const int32_t *labels, const float *dlosses, int64_t rows, int64_t cols, float *losses, float *lse,
                             float *hits, float cap, cudaStream_t stream)
{
    if (!rows) return;
    bool vec = cols % Pack<T>::N == 0 && is_aligned16(logits);
    auto kernel = cap > 0 ? vec ? loss_rows<T, true, true> : loss_rows<T, false, true>
                  : vec ? loss_rows<T, true, false>
                          : loss_rows<T, false, false>;
    kernel<<<(unsigned)rows, ROW_THREADS, 0, stream>>>(logits, labels, dlosses, cols, losses, lse, hits, cap);
}
