/* The row pass of rms_norm and add_rms_norm on CUDA: a block has a row and reads it twice, the second time from cache. */
#pragma once

#include "device/cuda/vec_f16.cuh"
#include "ops/lowbit/fp8_rows.cuh"
#include "ops/rows.cuh"

#include <type_traits>

enum { FEW_ROWS = 64 };

/* Loads a pack of the row before the norm: of x, or of the sum a + b, rounded as s is (or would be) stored. */
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

/* ADD: s = a + b (NULL: not kept). y, rstd_out may be NULL. C is a multiple of a pack. s may be a's memory. CODES: which codes of y are
 * made. wide: w begins at a multiple of 16 bytes. w_constant: no launch of the program writes w; if rows are few, w is then read before
 * earlier launches have ended. A thread that has one pack of a row keeps it in registers. */
template <typename T, bool ADD, int CODES>
static __global__ void rms_norm_packs(const T *a, const T *b, const T *w, bool wide, bool w_constant, T *s, T *y, RowCodes q,
                                      float *rstd_out, float eps, float offset)
{
    enum { N = Pack<T>::N };
    __shared__ float scratch[32];
    RowState         state = row_state<CODES>(q);
    int64_t          cols = q.scaled.cols, at = (int64_t)blockIdx.x * cols, first = (int64_t)threadIdx.x * N;
    bool  one_pack = cols <= (int64_t)blockDim.x * N, w_is_there = w_constant && one_pack && first < cols && gridDim.x <= FEW_ROWS;
    float sum = 0, v[N], u[N];
    release_launches();
    if (w_is_there)
        load_pack_any(w + first, wide, u);
    else if (gridDim.x <= FEW_ROWS) /* with many rows, the first rows' blocks fetch w */
        prefetch_l2(w + first % cols);
    await_launches();
    for (int64_t c = first; c < cols; c += (int64_t)blockDim.x * N) {
        load_row_pack<T, ADD>(a, b, at + c, v);
        if (ADD && s) store_pack(s + at + c, v);
#pragma unroll
        for (int i = 0; i < N; i++) sum += v[i] * v[i];
    }
    float rstd = rsqrtf(block_sum(sum, scratch) / (float)cols + eps);
    if (rstd_out && threadIdx.x == 0) rstd_out[blockIdx.x] = rstd;
    if (!y && !CODES) return;
    for (int64_t c = first; c < cols; c += (int64_t)blockDim.x * N) {
        if (!one_pack && ADD && s)
            load_pack(s + at + c, v); /* stored by this thread: no barrier is needed */
        else if (!one_pack)
            load_row_pack<T, ADD>(a, b, at + c, v);
        if (!w_is_there) load_pack_any(w + c, wide, u);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = (u[i] + offset) * (v[i] * rstd);
        store_result<CODES>(y, v, q, state, blockIdx.x, c);
    }
    row_record<CODES>(q, state);
}

/* For any dtypes and sizes. b absent: the norm of a alone. A sum is rounded to `sum_dtype`, and kept in s if that is given. */
static __global__ void rms_norm_elements(TensorView a, TensorView b, TensorView w, TensorView s, TensorView y, float *rstd_out,
                                         int64_t cols, int sum_dtype, float eps, float offset)
{
    __shared__ float scratch[32];
    int64_t          at = (int64_t)blockIdx.x * cols;
    float            rstd = 0;
    for (int pass = 0; pass < 2; pass++) {
        float sum = 0;
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
            float v;
            if (pass && s.data) {
                v = any_get(s.data, sum_dtype, at + c); /* stored by this thread: no barrier is needed */
            } else {
                v = any_get(a.data, a.type.dtype, at + c);
                if (b.data) {
                    v += any_get(b.data, b.type.dtype, at + c);
                    if (sum_dtype == DT_BF16) v = to_float(__float2bfloat16_rn(v));
                    if (sum_dtype == DT_F16) v = to_float(__float2half_rn(v));
                }
            }
            if (pass) {
                any_set(y.data, y.type.dtype, at + c, (any_get(w.data, w.type.dtype, c) + offset) * (v * rstd));
                continue;
            }
            if (s.data) any_set(s.data, sum_dtype, at + c, v);
            sum += v * v;
        }
        if (pass) return;
        rstd = rsqrtf(block_sum(sum, scratch) / (float)cols + eps);
        if (rstd_out && threadIdx.x == 0) rstd_out[blockIdx.x] = rstd;
        if (!y.data) return;
    }
}

template <typename T, bool ADD>
static Status launch_rms_norm(const KernelArgs *args, const TensorView *a, const TensorView *b, const TensorView *w, const TensorView *s,
                              const TensorView *y, bool w_constant, const RowCodes &q, float *rstd, float eps, float offset)
{
    unsigned threads = row_threads(q.scaled.cols / Pack<T>::N);
    int      kind = row_codes_kind(&q);
    auto     kernel = rms_norm_packs<T, ADD, CODES_NONE>;
    if constexpr (!std::is_same<T, __half>::value) { /* f16 has no codes */
        if (kind == CODES_SCALED) kernel = rms_norm_packs<T, ADD, CODES_SCALED>;
        if (kind == CODES_BLOCKS) kernel = rms_norm_packs<T, ADD, CODES_BLOCKS>;
    }
    return cuda_launch_early(args->early, kernel, dim3((unsigned)q.scaled.rows), threads, 0, cuda_stream(args), (const T *)a->data,
                             (const T *)b->data, (const T *)w->data, is_aligned16(w->data), w_constant, (T *)s->data, (T *)y->data, q, rstd,
                             eps, offset);
}

/* y = the norm of a, or with ADD of s = a + b. codes: the first output that is codes of y; scale: the first input for codes with one
 * scale. */
template <bool ADD>
static Status run_rms_norm(const KernelArgs *args, const TensorView *a, const TensorView *b, const TensorView *w, const TensorView *s,
                           const TensorView *y, float *rstd, int codes, int scale)
{
    const TensorView   *views[] = {a, b, w, s, y};
    int64_t             cols = type_cols(&a->type), rows = type_rows(&a->type);
    const RmsNormAttrs *attrs = (const RmsNormAttrs *)args->attrs;
    RowCodes            q = row_codes(args, codes, scale, attrs->codes, rows, cols);
    float               eps = (float)attrs->eps, offset = (float)attrs->offset;
    bool                whole = cols % (16 / dtype_bytes(a->type.dtype, 1)) == 0 && (is_aligned16(w->data) || row_codes_kind(&q));
    bool                w_constant = args->constant >> (w - args->in) & 1;
    if (whole && views_are(a->type.dtype, views, 5))
        CUDA_FLOAT_ANY(a->type.dtype, T, return (launch_rms_norm<T, ADD>(args, a, b, w, s, y, w_constant, q, rstd, eps, offset)));
    else
        rms_norm_elements<<<(unsigned)rows, 256, 0, cuda_stream(args)>>>(*a, *b, *w, *s, *y, rstd, cols, a->type.dtype, eps, offset);
    return CUDA_LAUNCHED();
}
