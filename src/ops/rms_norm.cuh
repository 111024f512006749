/* The row pass of rms_norm and add_rms_norm on CUDA: a block a row, two reads of it (the second from cache). */
#pragma once

#include "ops/rows.cuh"

/* Element i of the normed row, before the norm: x, or the sum a + b rounded as it is (or would be) stored. */
template <typename T, bool ADD> static __device__ __forceinline__ void load_row_pack(const T *a, const T *b, int64_t at, float *v)
{
    enum { N = Pack<T>::N };
    float u[N];
    load_pack(a + at, v);
    if (!ADD) return;
    load_pack(b + at, u);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = to_float(from_float<T>(v[i] + u[i]));
}

/* ADD: s = a + b (NULL: not kept). y, rstd may be NULL. C is a multiple of a pack. s may be a's memory. */
template <typename T, bool ADD>
static __global__ void rms_norm_packs(const T *a, const T *b, const T *w, T *s, T *y, float *rstd_out, int64_t cols, float eps)
{
    enum { N = Pack<T>::N };
    __shared__ float scratch[32];
    int64_t          at = (int64_t)blockIdx.x * cols;
    float            sum = 0, v[N], u[N];
    for (int64_t c = (int64_t)threadIdx.x * N; c < cols; c += (int64_t)blockDim.x * N) {
        load_row_pack<T, ADD>(a, b, at + c, v);
        if (ADD && s) store_pack(s + at + c, v);
#pragma unroll
        for (int i = 0; i < N; i++) sum += v[i] * v[i];
    }
    float rstd = rsqrtf(block_sum(sum, scratch) / (float)cols + eps);
    if (rstd_out && threadIdx.x == 0) rstd_out[blockIdx.x] = rstd;
    if (!y) return;
    for (int64_t c = (int64_t)threadIdx.x * N; c < cols; c += (int64_t)blockDim.x * N) {
        if (ADD && s)
            load_pack(s + at + c, v); /* this thread's own */
        else
            load_row_pack<T, ADD>(a, b, at + c, v);
        load_pack(w + c, u);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = u[i] * (v[i] * rstd);
        store_pack(y + at + c, v);
    }
}

/* Any dtypes and sizes. b absent: plain norm of a; the sum is rounded to `sum_dtype`, kept in s or not. */
static __global__ void rms_norm_elements(TensorView a, TensorView b, TensorView w, TensorView s, TensorView y, float *rstd_out,
                                         int64_t cols, int sum_dtype, float eps)
{
    __shared__ float scratch[32];
    int64_t          at = (int64_t)blockIdx.x * cols;
    float            rstd = 0;
    for (int pass = 0; pass < 2; pass++) {
        float sum = 0;
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
            float v;
            if (pass && s.data) {
                v = elem_get(s.data, sum_dtype, at + c); /* this thread's own */
            } else {
                v = elem_get(a.data, a.type.dtype, at + c);
                if (b.data) {
                    v += elem_get(b.data, b.type.dtype, at + c);
                    if (sum_dtype == DT_BF16) v = to_float(__float2bfloat16_rn(v));
                }
            }
            if (pass) {
                elem_set(y.data, y.type.dtype, at + c, elem_get(w.data, w.type.dtype, c) * (v * rstd));
                continue;
            }
            if (s.data) elem_set(s.data, sum_dtype, at + c, v);
            sum += v * v;
        }
        if (pass) return;
        rstd = rsqrtf(block_sum(sum, scratch) / (float)cols + eps);
        if (rstd_out && threadIdx.x == 0) rstd_out[blockIdx.x] = rstd;
        if (!y.data) return;
    }
}
