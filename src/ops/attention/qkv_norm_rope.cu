/* qkv_norm_rope on CUDA: reads and writes each element once. A group of lanes has a head (qkv.cuh). */
#include "device/cuda/vec_f16.cuh"
#include "ops/attention/qkv.cuh"
#include "ops/attrs.h"

enum { THREADS = 128, AHEAD = 4 };

/* Loads this lane's packs of AHEAD heads: base, base + GROUPS, ... */
template <typename T, int GROUPS>
static __device__ __forceinline__ void load_heads(Pack<T> (&packs)[AHEAD], const T *x, int base, int heads, int64_t head_dim)
{
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
        if (base + u * GROUPS < heads) packs[u].words = *(const uint4 *)(x + (base + u * GROUPS) * head_dim);
}

/* A block has a row. A lane has the same columns of every head, so it keeps its part of the table and of the weights. Packs of AHEAD heads
 * are loaded before the first is used. wq, wk NULL: no norms. rstd_out, y NULL: not wanted. y may be x's memory. constant: no launch of the
 * program writes any operand but x. */
template <typename T, int LANES>
static __global__ void __launch_bounds__(THREADS) qkv_rows(QkvDims d, const T *x, const T *wq, const T *wk, const float *table,
                                                           const int32_t *positions, T *y, float *rstd_out, bool constant)
{
    enum { N = Pack<T>::N, GROUPS = THREADS / LANES };
    int     num_q = (int)d.num_q, turned = num_q + (int)d.num_kv, heads = turned + (int)d.num_kv;
    int     lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    int64_t row = blockIdx.x;
    x += row * heads * d.head_dim + lane * N;
    if (y) y += row * heads * d.head_dim + lane * N;
    Pack<T> packs[AHEAD];
    release_launches();
    if (!constant) await_launches();
    if (!constant) load_heads<T, GROUPS>(packs, x, group, heads, d.head_dim); /* issued first: load_table waits for positions[row] */
    QkvTableOf<N> t = load_table<LANES, N>(table, positions[row], d.table_len, lane);
    float         weight_q[N], weight_k[N];
    if (wq) {
        load_pack(wq + lane * N, weight_q);
        load_pack(wk + lane * N, weight_k);
    }
    if (constant) {
        await_launches();
        load_heads<T, GROUPS>(packs, x, group, heads, d.head_dim);
    }
    for (int base = group; base - group < heads; base += AHEAD * GROUPS) {
        if (base > group) load_heads<T, GROUPS>(packs, x, base, heads, d.head_dim);
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int   head = base + u * GROUPS;
            float v[N], rstd = 1;
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = to_float(packs[u].v[k]);
            if (wq) {
                float sum = 0;
#pragma unroll
                for (int k = 0; k < N; k++) sum += v[k] * v[k];
                rstd = rsqrtf(group_sum<LANES>(sum) / (float)d.head_dim + d.eps);
#pragma unroll
                for (int k = 0; k < N; k++) v[k] = ((head < num_q ? weight_q[k] : weight_k[k]) + d.offset) * (v[k] * rstd);
            }
            turn<LANES, N>(v, t, lane, 1.0f);
            if (rstd_out && lane == 0 && head < turned) rstd_out[row * turned + head] = rstd;
            if (!y || head >= heads) continue;
            if (head < turned)
                store_pack(y + head * d.head_dim, v);
            else if (y != x)
                *(uint4 *)(y + head * d.head_dim) = packs[u].words;
        }
    }
}

/* A warp has a head; a lane has the pairs lane, lane + 32, ... */
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
            float v = any_get(x.data, x.type.dtype, at + i);
            sum += v * v;
        }
        if (norm) {
            rstd = rsqrtf(warp_sum(sum) / (float)d.head_dim + d.eps);
        }
        if (rstd_out && lane == 0 && head < turned) rstd_out[row * turned + head] = rstd;
        TensorView w = head < d.num_q ? wq : wk;
        for (int64_t i = lane; y.data && i < half; i += 32) {
            float a = any_get(x.data, x.type.dtype, at + i), b = any_get(x.data, x.type.dtype, at + half + i);
            if (norm) {
                a = (any_get(w.data, w.type.dtype, i) + d.offset) * (a * rstd);
                b = (any_get(w.data, w.type.dtype, half + i) + d.offset) * (b * rstd);
            }
            float c = inside ? table[position * d.head_dim + i] : NAN, s = inside ? table[position * d.head_dim + half + i] : NAN;
            any_set(y.data, y.type.dtype, at + i, head < turned ? a * c - b * s : a);
            any_set(y.data, y.type.dtype, at + half + i, head < turned ? b * c + a * s : b);
        }
    }
}

template <typename T, int LANES> static Status launch_heads(const KernelArgs *args, const QkvDims *d)
{
    bool constant = true;
    for (int k = 1; k < args->num_in; k++) constant = constant && (!args->in[k].data || args->constant >> k & 1);
    return cuda_launch_early(args->early, qkv_rows<T, LANES>, dim3((unsigned)d->rows), THREADS, 0, cuda_stream(args), *d,
                             (const T *)args->in[0].data, (const T *)args->in[1].data, (const T *)args->in[2].data,
                             (const float *)args->in[3].data, (const int32_t *)args->in[4].data, (T *)args->out[0].data,
                             (float *)args->out[1].data, constant);
}

static bool has_lanes(int lanes)
{
    return lanes == 4 || lanes == 8 || lanes == 16 || lanes == 32;
}

/* lanes: a number that has_lanes accepts */
template <typename T> static Status launch_fitting(const KernelArgs *args, const QkvDims *d, int lanes)
{
    if (lanes == 4) return launch_heads<T, 4>(args, d);
    if (lanes == 8) return launch_heads<T, 8>(args, d);
    return lanes == 16 ? launch_heads<T, 16>(args, d) : launch_heads<T, 32>(args, d);
}

static Status qkv_norm_rope_run(const KernelArgs *args)
{
    const TensorView *x = &args->in[0], *wq = &args->in[1], *wk = &args->in[2], *y = &args->out[0];
    QkvDims           d = qkv_dims((const QkvAttrs *)args->attrs, &x->type, &args->in[3].type);
    const TensorView *views[] = {x, wq, wk, y};
    int               lanes = head_lanes(d.head_dim, x->type.dtype);
    if (!d.rows) return OK;
    if (has_lanes(lanes) && views_are(x->type.dtype, views, 4) && is_aligned16(wq->data) && is_aligned16(wk->data))
        CUDA_FLOAT_ANY(x->type.dtype, T, return launch_fitting<T>(args, &d, lanes));
    else
        qkv_pairs<<<cuda_grid(d.rows * (d.num_q + 2 * d.num_kv), THREADS / 32), THREADS, 0, cuda_stream(args)>>>(
            d, *x, *wq, *wk, (const float *)args->in[3].data, (const int32_t *)args->in[4].data, *y, (float *)args->out[1].data);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(qkv_norm_rope, {.dtypes = DT_SET_DECODE, .run = qkv_norm_rope_run, .name = "heads"})
