/* qkv_norm_rope on CUDA: reads and writes each element once. A group of lanes a head (qkv.cuh). */
#include "ops/attrs.h"
#include "ops/qkv.cuh"

enum { THREADS = 256 };

/* wq, wk NULL: no norms. rstd NULL: not wanted. y may be x's memory. */
template <typename T, int LANES>
static __global__ void qkv_heads(QkvDims d, const T *x, const T *wq, const T *wk, const float *table, const int32_t *positions, T *y, float *rstd_out)
{
    enum { N = Pack<T>::N };
    int64_t heads = d.num_q + 2 * d.num_kv, turned = d.num_q + d.num_kv, count = d.rows * heads;
    int     lane = threadIdx.x % LANES;
    int64_t groups = (int64_t)gridDim.x * (THREADS / LANES), first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    /* All lanes of a warp stay in the loop together: they shuffle. */
    int64_t turns = cuda_div_up_device(count, groups);
    for (int64_t turn = 0; turn < turns; turn++) {
        int64_t g = first + turn * groups;
        bool    live = g < count;
        int64_t row = live ? g / heads : 0, head = live ? g - row * heads : turned;
        float   v[N];
        load_pack(x + (row * heads + head) * d.head_dim + lane * N, v);
        bool     is_turned = head < turned;
        const T *w = head < d.num_q ? wq : wk;
        if (wq) {
            float sum = 0;
#pragma unroll
            for (int k = 0; k < N; k++) sum += v[k] * v[k];
            float rstd = rsqrtf(group_sum<LANES>(sum) / (float)d.head_dim + d.eps);
            if (is_turned) {
                float scale[N];
                load_pack(w + lane * N, scale);
#pragma unroll
                for (int k = 0; k < N; k++) v[k] = scale[k] * (v[k] * rstd);
                if (rstd_out && live && lane == 0) rstd_out[row * turned + head] = rstd;
            }
        }
        float straight[N];
#pragma unroll
        for (int k = 0; k < N; k++) straight[k] = v[k];
        turn_pack<LANES, N>(v, table, positions[row], d.table_len, lane, 1.0f);
        if (live && y) store_pack(y + (row * heads + head) * d.head_dim + lane * N, is_turned ? v : straight);
    }
}

/* A warp a head; each lane the pairs i, i + 32, ... */
static __global__ void qkv_pairs(QkvDims d, TensorView x, TensorView wq, TensorView wk, const float *table, const int32_t *positions,
                                 TensorView y, float *rstd_out)
{
    int64_t heads = d.num_q + 2 * d.num_kv, turned = d.num_q + d.num_kv, half = d.head_dim / 2;
    int     lane = threadIdx.x & 31;
    for (int64_t g = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32; g < d.rows * heads; g += (int64_t)gridDim.x * (THREADS / 32)) {
        int64_t row = g / heads, head = g - row * heads, at = g * d.head_dim;
        int32_t position = positions[row];
        bool    norm = wq.data && head < turned, inside = position >= 0 && position < d.table_len;
        float   sum = 0, rstd = 1;
        for (int64_t i = lane; norm && i < d.head_dim; i += 32) {
            float v = elem_get(x.data, x.type.dtype, at + i);
            sum += v * v;
        }
        if (norm) {
            rstd = rsqrtf(warp_sum(sum) / (float)d.head_dim + d.eps);
            if (rstd_out && lane == 0) rstd_out[row * turned + head] = rstd;
        }
        TensorView w = head < d.num_q ? wq : wk;
        for (int64_t i = lane; y.data && i < half; i += 32) {
            float a = elem_get(x.data, x.type.dtype, at + i), b = elem_get(x.data, x.type.dtype, at + half + i);
            if (norm) {
                a = elem_get(w.data, w.type.dtype, i) * (a * rstd);
                b = elem_get(w.data, w.type.dtype, half + i) * (b * rstd);
            }
            float c = inside ? table[position * d.head_dim + i] : NAN, s = inside ? table[position * d.head_dim + half + i] : NAN;
            elem_set(y.data, y.type.dtype, at + i, head < turned ? a * c - b * s : a);
            elem_set(y.data, y.type.dtype, at + half + i, head < turned ? b * c + a * s : b);
        }
    }
}

template <typename T, int LANES> static void launch_heads(const KernelArgs *args, const QkvDims *d)
{
    int64_t count = d->rows * (d->num_q + 2 * d->num_kv);
    qkv_heads<T, LANES><<<cuda_grid(count, THREADS / LANES), THREADS, 0, cuda_stream(args)>>>(
        *d, (const T *)args->in[0].data, (const T *)args->in[1].data, (const T *)args->in[2].data, (const float *)args->in[3].data,
        (const int32_t *)args->in[4].data, (T *)args->out[0].data, (float *)args->out[1].data);
}

template <typename T> static bool launch_fitting(const KernelArgs *args, const QkvDims *d, int lanes)
{
    if (lanes == 4) launch_heads<T, 4>(args, d);
    else if (lanes == 8) launch_heads<T, 8>(args, d);
    else if (lanes == 16) launch_heads<T, 16>(args, d);
    else if (lanes == 32) launch_heads<T, 32>(args, d);
    else return false;
    return true;
}

static Status qkv_norm_rope_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *wq = &args->in[1], *wk = &args->in[2], *y = &args->out[0];
    QkvDims           d = qkv_dims((const QkvAttrs *)args->attrs, &x->type, &args->in[3].type);
    const TensorView *views[] = { x, wq, wk, y };
    int               lanes = head_lanes(d.head_dim, x->type.dtype);
    bool              done = false;
    if (views_are(x->type.dtype, views, 4) && is_aligned16(wq->data) && is_aligned16(wk->data))
        CUDA_FLOAT(x->type.dtype, T, done = launch_fitting<T>(args, &d, lanes));
    if (!done)
        qkv_pairs<<<cuda_grid(d.rows * (d.num_q + 2 * d.num_kv), THREADS / 32), THREADS, 0, cuda_stream(args)>>>(
            d, *x, *wq, *wk, (const float *)args->in[3].data, (const int32_t *)args->in[4].data, *y, (float *)args->out[1].data);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(qkv_norm_rope, { .dtypes = DT_SET_FLOAT, .run = qkv_norm_rope_run, .name = "heads" })
