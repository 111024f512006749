/* qkv_norm_rope_bwd on CUDA: a group of lanes a head, turned back and through the norm. dwq and dwk: each block takes a chunk of
 * rows; lanes keep their columns in registers, blocks add them in a fixed order to workspace. */
#include "ops/attrs.h"
#include "ops/qkv.cuh"

enum { IN_DY, IN_QKV, IN_WQ, IN_WK, IN_TABLE, IN_POSITIONS, IN_RSTD };
enum { THREADS = 256, AHEAD = 2 };

typedef struct QkvBwd {
    QkvDims        d;
    const float   *table, *rstd;
    const int32_t *positions;
    float         *partial; /* (blocks, 2, head_dim): dwq, dwk; NULL: not wanted */
    int64_t        chunk_rows;
} QkvBwd;

/* Adds the groups' sums in order of group: groups of a block hold head_dim floats each in shared memory. */
static __device__ void block_combine(float *out, const float *groups, int num_groups, int64_t head_dim)
{
    __syncthreads();
    for (int64_t c = threadIdx.x; c < head_dim; c += blockDim.x) {
        float sum = 0;
        for (int g = 0; g < num_groups; g++) sum += groups[g * head_dim + c];
        out[c] = sum;
    }
    __syncthreads();
}

template <typename T, int LANES>
static __global__ void __launch_bounds__(THREADS) qkv_heads_bwd(QkvBwd q, const T *dy, const T *x, const T *wq, const T *wk, T *dx)
{
    enum { N = Pack<T>::N, GROUPS = THREADS / LANES };
    __shared__ float sums[GROUPS * LANES * N];
    const QkvDims    d = q.d;
    int              num_q = (int)d.num_q, turned = num_q + (int)d.num_kv, heads = turned + (int)d.num_kv;
    int64_t          begin = (int64_t)blockIdx.x * q.chunk_rows, end = begin + q.chunk_rows < d.rows ? begin + q.chunk_rows : d.rows;
    int              lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    float            dq[N] = {}, dk[N] = {}, weight_q[N], weight_k[N];
    if (wq) {
        load_pack(wq + lane * N, weight_q);
        load_pack(wk + lane * N, weight_k);
    }
    for (int64_t row = begin; row < end; row++) {
        QkvTableOf<N> t = load_table<LANES, N>(q.table, q.positions[row], d.table_len, lane);
        int64_t       first = row * heads * d.head_dim + lane * N;
        for (int base = group; base - group < heads; base += AHEAD * GROUPS) {
            Pack<T> grads[AHEAD], inputs[AHEAD];
            float   rstds[AHEAD] = {};
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int head = base + u * GROUPS;
                if (head < heads) grads[u].words = *(const uint4 *)(dy + first + head * d.head_dim);
                if (!wq || head >= turned) continue;
                inputs[u].words = *(const uint4 *)(x + first + head * d.head_dim);
                rstds[u] = q.rstd[row * turned + head];
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int   head = base + u * GROUPS;
                float v[N];
#pragma unroll
                for (int k = 0; k < N; k++) v[k] = to_float(grads[u].v[k]);
                turn<LANES, N>(v, t, lane, -1.0f);
                if (wq) {
                    bool  is_q = head < num_q;
                    float rstd = rstds[u], dot = 0; /* 0 for values: they add nothing */
#pragma unroll
                    for (int k = 0; k < N; k++) {
                        float input = to_float(inputs[u].v[k]), w = is_q ? weight_q[k] : weight_k[k], part = v[k] * (input * rstd);
                        dot += v[k] * w * input;
                        if (is_q) dq[k] += part;
                        else if (head < turned) dk[k] += part;
                    }
                    float pull = rstd * rstd * rstd * group_sum<LANES>(dot) / (float)d.head_dim;
#pragma unroll
                    for (int k = 0; k < N; k++)
                        v[k] = v[k] * (is_q ? weight_q[k] : weight_k[k]) * rstd - to_float(inputs[u].v[k]) * pull;
                }
                if (!dx || head >= heads) continue;
                if (head < turned)
                    store_pack(dx + first + head * d.head_dim, v);
                else if (dx != dy)
                    *(uint4 *)(dx + first + head * d.head_dim) = grads[u].words;
            }
        }
    }
    if (!q.partial) return;
    float *out = q.partial + (int64_t)blockIdx.x * 2 * d.head_dim;
    for (int k = 0; k < N; k++) sums[group * LANES * N + lane * N + k] = dq[k];
    block_combine(out, sums, GROUPS, d.head_dim);
    for (int k = 0; k < N; k++) sums[group * LANES * N + lane * N + k] = dk[k];
    block_combine(out + d.head_dim, sums, GROUPS, d.head_dim);
}

/* Any head size: a warp a head. The sums go a block's warp 0 only, head by head, in order. */
static __global__ void qkv_pairs_bwd(QkvBwd q, TensorView dy, TensorView x, TensorView wq, TensorView wk, TensorView dx)
{
    const QkvDims d = q.d;
    int64_t       heads = d.num_q + 2 * d.num_kv, turned = d.num_q + d.num_kv, half = d.head_dim / 2;
    int64_t       begin = (int64_t)blockIdx.x * q.chunk_rows, end = begin + q.chunk_rows < d.rows ? begin + q.chunk_rows : d.rows;
    int           lane = threadIdx.x;
    float        *out = q.partial ? q.partial + (int64_t)blockIdx.x * 2 * d.head_dim : NULL;
    for (int64_t i = lane; out && i < 2 * d.head_dim; i += 32) out[i] = 0;
    for (int64_t g = begin * heads; g < end * heads; g++) {
        int64_t    row = g / heads, head = g - row * heads, at = g * d.head_dim;
        int32_t    position = q.positions[row];
        bool       norm = wq.data && head < turned, inside = position >= 0 && position < d.table_len;
        TensorView w = head < d.num_q ? wq : wk;
        float      rstd = norm ? q.rstd[row * turned + head] : 1, pull = 0, *dw = out && norm ? out + (head < d.num_q ? 0 : d.head_dim) : NULL;
        for (int pass = norm ? 0 : 1; pass < 2; pass++) {
            float dot = 0;
            for (int64_t i = lane; i < half; i += 32) {
                float a = elem_get(dy.data, dy.type.dtype, at + i), b = elem_get(dy.data, dy.type.dtype, at + half + i);
                float c = inside ? q.table[position * d.head_dim + i] : NAN, s = inside ? q.table[position * d.head_dim + half + i] : NAN;
                float first = head < turned ? a * c + b * s : a, second = head < turned ? b * c - a * s : b;
                if (norm) {
                    float u = elem_get(x.data, x.type.dtype, at + i), v = elem_get(x.data, x.type.dtype, at + half + i);
                    float wu = elem_get(w.data, w.type.dtype, i), wv = elem_get(w.data, w.type.dtype, half + i);
                    if (pass == 0) {
                        dot += first * wu * u + second * wv * v;
                        if (dw) dw[i] += first * (u * rstd), dw[half + i] += second * (v * rstd);
                        continue;
                    }
                    first = first * wu * rstd - u * pull;
                    second = second * wv * rstd - v * pull;
                }
                if (!dx.data) continue;
                elem_set(dx.data, dx.type.dtype, at + i, first);
                elem_set(dx.data, dx.type.dtype, at + half + i, second);
            }
            if (pass == 0) pull = rstd * rstd * rstd * warp_sum(dot) / (float)d.head_dim;
        }
    }
}

template <typename T, int LANES> static void launch_heads(const KernelArgs *args, const QkvBwd *q)
{
    unsigned grid = (unsigned)cuda_div_up(q->d.rows, q->chunk_rows);
    qkv_heads_bwd<T, LANES><<<grid, THREADS, 0, cuda_stream(args)>>>(*q, (const T *)args->in[IN_DY].data, (const T *)args->in[IN_QKV].data,
                                                                    (const T *)args->in[IN_WQ].data, (const T *)args->in[IN_WK].data,
                                                                    (T *)args->out[0].data);
}

template <typename T> static bool launch_fitting(const KernelArgs *args, const QkvBwd *q, int lanes)
{
    if (lanes == 4) launch_heads<T, 4>(args, q);
    else if (lanes == 8) launch_heads<T, 8>(args, q);
    else if (lanes == 16) launch_heads<T, 16>(args, q);
    else if (lanes == 32) launch_heads<T, 32>(args, q);
    else return false;
    return true;
}

static Status qkv_norm_rope_bwd_run(const KernelArgs *args)
{
    const TensorView *dy = &args->in[IN_DY], *x = &args->in[IN_QKV], *wq = &args->in[IN_WQ], *wk = &args->in[IN_WK], *dx = &args->out[0];
    QkvBwd            q = {};
    q.d = qkv_dims((const QkvAttrs *)args->attrs, &dy->type, &args->in[IN_TABLE].type);
    q.table = (const float *)args->in[IN_TABLE].data, q.rstd = (const float *)args->in[IN_RSTD].data;
    q.positions = (const int32_t *)args->in[IN_POSITIONS].data;
    q.partial = args->out[1].data || args->out[2].data ? (float *)args->workspace : NULL;
    q.chunk_rows = sum_chunk_rows(q.d.rows);
    const TensorView *views[] = { dy, x, wq, wk, dx };
    bool              done = false;
    if (views_are(dy->type.dtype, views, 5) && is_aligned16(wq->data) && is_aligned16(wk->data))
        CUDA_FLOAT(dy->type.dtype, T, done = launch_fitting<T>(args, &q, head_lanes(q.d.head_dim, dy->type.dtype)));
    int64_t chunks = cuda_div_up(q.d.rows, q.chunk_rows);
    if (!done) qkv_pairs_bwd<<<(unsigned)chunks, 32, 0, cuda_stream(args)>>>(q, *dy, *x, *wq, *wk, *dx);
    for (int k = 1; k <= 2; k++)
        if (args->out[k].data) launch_combine(args, k, q.partial + (k - 1) * q.d.head_dim, chunks, 2 * q.d.head_dim, q.d.head_dim);
    return CUDA_LAUNCHED();
}

static size_t qkv_norm_rope_bwd_workspace(const Node *node, CudaDevice *device)
{
    const QkvAttrs *attrs = (const QkvAttrs *)node->attrs;
    (void)device;
    if (!node->out[1] && !node->out[2]) return 0;
    return (size_t)(sum_num_chunks(type_rows(&node->in[IN_DY]->type)) * 2 * attrs->head_dim) * sizeof(float);
}

CUDA_KERNELS(qkv_norm_rope_bwd,
             { .dtypes = DT_SET_FLOAT, .run = qkv_norm_rope_bwd_run, .name = "heads", .workspace = qkv_norm_rope_bwd_workspace })
