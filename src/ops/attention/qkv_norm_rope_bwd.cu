/* qkv_norm_rope_bwd on CUDA: a group of lanes has a head, rotates it back and goes through its norm. dwq and dwk: each block takes a chunk
 * of rows; lanes keep sums of their columns in registers, and blocks add them to the workspace in a fixed order. */
#include "ops/attention/qkv.cuh"
#include "ops/attrs.h"
#include "ops/lowbit/fp8_rows.cuh"

enum { OUT_DX, OUT_DWQ, OUT_DWK, OUT_CODES, OUT_MORE };
enum { IN_DY, IN_QKV, IN_WQ, IN_WK, IN_TABLE, IN_POSITIONS, IN_RSTD, IN_ACC_DWQ, IN_ACC_DWK, IN_SCALE };
enum { THREADS = 256, AHEAD = 2 };

typedef struct QkvBwd {
    QkvDims        d;
    const float   *table, *rstd;
    const int32_t *positions;
    float         *partial; /* (blocks, 2, head_dim): dwq, dwk; NULL: not wanted */
    int64_t        chunk_rows;
} QkvBwd;

/* Adds the groups' sums in order of groups. Each group of the block has head_dim floats in shared memory. */
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

/* The operands that a lane reads for AHEAD heads of a row. */
template <typename T> struct HeadBatch {
    Pack<T> grads[AHEAD], inputs[AHEAD];
    float   rstds[AHEAD];
};

template <typename T, int GROUPS>
static __device__ __forceinline__ void load_batch(HeadBatch<T> &batch, const T *dy, const T *x, const float *rstd, int base, int turned,
                                                  int heads, int64_t head_dim)
{
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        int head = base + u * GROUPS;
        batch.rstds[u] = 0;
        batch.inputs[u].words = make_uint4(0, 0, 0, 0);
        if (head < heads) batch.grads[u].words = *(const uint4 *)(dy + head * head_dim);
        if (!x || head >= turned) continue;
        batch.inputs[u].words = *(const uint4 *)(x + head * head_dim);
        batch.rstds[u] = rstd[head];
    }
}

template <typename T> static __device__ __forceinline__ Pack<T> load_weight(const T *w, bool wide)
{
    float v[Pack<T>::N];
    load_pack_any(w, wide, v);
    return to_pack<T>(v);
}

/* The next heads are loaded before the current ones are computed. NORM: wq and wk are given. CODES: which codes of dx are made. wide: wq
 * and wk begin at multiples of 16 bytes. */
template <typename T, int LANES, int CODES, bool NORM>
static __global__ void __launch_bounds__(THREADS, NORM ? 2 : 4)
    qkv_heads_bwd(QkvBwd q, const T *dy, const T *x, const T *wq, const T *wk, bool wide, T *dx, RowCodes codes)
{
    enum { N = Pack<T>::N, GROUPS = THREADS / LANES };
    __shared__ float sums[GROUPS * LANES * N];
    const QkvDims    d = q.d;
    int              num_q = (int)d.num_q, turned = num_q + (int)d.num_kv, all = turned + (int)d.num_kv;
    int              heads = (dx && dx != dy) || CODES ? all : turned; /* v heads that stay in place are skipped */
    int64_t          row = (int64_t)blockIdx.x * q.chunk_rows, end = row + q.chunk_rows < d.rows ? row + q.chunk_rows : d.rows;
    int64_t          row_size = all * d.head_dim;
    int              lane = threadIdx.x % LANES, group = threadIdx.x / LANES, base = group;
    float            dq[N] = {}, dk[N] = {};
    Pack<T>          weight_q, weight_k;
    HeadBatch<T>     batch;
    QkvTableOf<N>    t;
    RowState         state = row_state<CODES>(codes);
    dy += lane * N;
    if (!NORM) x = NULL;
    if (NORM) {
        x += lane * N;
        weight_q = load_weight(wq + lane * N, wide);
        weight_k = load_weight(wk + lane * N, wide);
    }
    load_batch<T, GROUPS>(batch, dy + row * row_size, x ? x + row * row_size : NULL, q.rstd + row * turned, base, turned, heads,
                          d.head_dim);
    while (row < end) {
        int64_t      next_row = row, first = row * row_size + lane * N;
        int          next_base = base + AHEAD * GROUPS;
        HeadBatch<T> next;
        if (next_base - group >= heads) next_row++, next_base = group;
        if (base == group) t = load_table<LANES, N>(q.table, q.positions[row], d.table_len, lane);
        if (next_row < end)
            load_batch<T, GROUPS>(next, dy + next_row * row_size, x ? x + next_row * row_size : NULL, q.rstd + next_row * turned, next_base,
                                  turned, heads, d.head_dim);
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int   head = base + u * GROUPS;
            float v[N];
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = to_float(batch.grads[u].v[k]);
            turn<LANES, N>(v, t, lane, -1.0f);
            if (NORM) {
                bool    is_q = head < num_q;
                float   rstd = batch.rstds[u], dot = 0; /* 0 for v heads: they add nothing */
                Pack<T> w;
                w.words = make_uint4(is_q ? weight_q.words.x : weight_k.words.x, is_q ? weight_q.words.y : weight_k.words.y,
                                     is_q ? weight_q.words.z : weight_k.words.z, is_q ? weight_q.words.w : weight_k.words.w);
#pragma unroll
                for (int k = 0; k < N; k++) {
                    float input = to_float(batch.inputs[u].v[k]), part = v[k] * (input * rstd);
                    v[k] *= to_float(w.v[k]) + d.offset;
                    dot += v[k] * input;
                    if (is_q)
                        dq[k] += part;
                    else if (head < turned)
                        dk[k] += part;
                }
                float pull = rstd * rstd * rstd * group_sum<LANES>(dot) / (float)d.head_dim;
#pragma unroll
                for (int k = 0; k < N; k++) v[k] = v[k] * rstd - to_float(batch.inputs[u].v[k]) * pull;
            }
            if (!(dx || CODES) || head >= heads) continue;
            Pack<T> result = head < turned ? to_pack<T>(v) : batch.grads[u];
            if (dx) *(uint4 *)(dx + first + head * d.head_dim) = result.words;
            if (CODES) store_row_codes<CODES>(codes, state, result, row, head * d.head_dim + lane * N);
        }
        batch = next;
        row = next_row;
        base = next_base;
    }
    row_record<CODES>(codes, state);
    if (!q.partial) return;
    float *out = q.partial + (int64_t)blockIdx.x * 2 * d.head_dim;
    for (int k = 0; k < N; k++) sums[group * LANES * N + lane * N + k] = dq[k];
    block_combine(out, sums, GROUPS, d.head_dim);
    for (int k = 0; k < N; k++) sums[group * LANES * N + lane * N + k] = dk[k];
    block_combine(out + d.head_dim, sums, GROUPS, d.head_dim);
}

/* For any head size. A block is one warp with a chunk of rows; it adds head by head, so the order of sums is fixed. */
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
        float rstd = norm ? q.rstd[row * turned + head] : 1, pull = 0, *dw = out && norm ? out + (head < d.num_q ? 0 : d.head_dim) : NULL;
        for (int pass = norm ? 0 : 1; pass < 2; pass++) {
            float dot = 0;
            for (int64_t i = lane; i < half; i += 32) {
                float a = elem_get(dy.data, dy.type.dtype, at + i), b = elem_get(dy.data, dy.type.dtype, at + half + i);
                float c = inside ? q.table[position * d.head_dim + i] : NAN, s = inside ? q.table[position * d.head_dim + half + i] : NAN;
                float first = head < turned ? a * c + b * s : a, second = head < turned ? b * c - a * s : b;
                if (norm) {
                    float u = elem_get(x.data, x.type.dtype, at + i), v = elem_get(x.data, x.type.dtype, at + half + i);
                    float wu = elem_get(w.data, w.type.dtype, i) + d.offset, wv = elem_get(w.data, w.type.dtype, half + i) + d.offset;
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

template <typename T, int LANES, bool NORM> static void launch_heads(const KernelArgs *args, const QkvBwd *q)
{
    unsigned          grid = (unsigned)cuda_div_up(q->d.rows, q->chunk_rows);
    const TensorView *in = args->in;
    int64_t           format = ((const QkvAttrs *)args->attrs)->codes;
    RowCodes          codes = row_codes(args, OUT_CODES, IN_SCALE, format, q->d.rows, type_cols(&in[IN_DY].type));
    int               kind = row_codes_kind(&codes);
    auto              kernel = kind == CODES_SCALED   ? qkv_heads_bwd<T, LANES, CODES_SCALED, NORM>
                               : kind == CODES_BLOCKS ? qkv_heads_bwd<T, LANES, CODES_BLOCKS, NORM>
                                                      : qkv_heads_bwd<T, LANES, CODES_NONE, NORM>;
    bool              wide = is_aligned16(in[IN_WQ].data) && is_aligned16(in[IN_WK].data);
    kernel<<<grid, THREADS, 0, cuda_stream(args)>>>(*q, (const T *)in[IN_DY].data, (const T *)in[IN_QKV].data, (const T *)in[IN_WQ].data,
                                                    (const T *)in[IN_WK].data, wide, (T *)args->out[OUT_DX].data, codes);
}

template <typename T, bool NORM> static bool launch_fitting(const KernelArgs *args, const QkvBwd *q, int lanes)
{
    if (lanes == 4)
        launch_heads<T, 4, NORM>(args, q);
    else if (lanes == 8)
        launch_heads<T, 8, NORM>(args, q);
    else if (lanes == 16)
        launch_heads<T, 16, NORM>(args, q);
    else if (lanes == 32)
        launch_heads<T, 32, NORM>(args, q);
    else
        return false;
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
    const TensorView *views[] = {dy, x, wq, wk, dx};
    bool              done = false;
    int               lanes = head_lanes(q.d.head_dim, dy->type.dtype);
    if (views_are(dy->type.dtype, views, 5))
        CUDA_FLOAT(dy->type.dtype, T,
                   done = wq->data ? launch_fitting<T, true>(args, &q, lanes) : launch_fitting<T, false>(args, &q, lanes));
    int64_t chunks = cuda_div_up(q.d.rows, q.chunk_rows);
    if (!done) qkv_pairs_bwd<<<(unsigned)chunks, 32, 0, cuda_stream(args)>>>(q, *dy, *x, *wq, *wk, *dx);
    for (int k = 1; k <= 2; k++)
        if (args->out[k].data) launch_combine(args, k, q.partial + (k - 1) * q.d.head_dim, chunks, 2 * q.d.head_dim, q.d.head_dim);
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(qkv_norm_rope_bwd, {.dtypes = DT_SET_FLOAT,
                                 .run = qkv_norm_rope_bwd_run,
                                 .name = "heads",
                                 .workspace = cuda_planned_workspace,
                                 .except = {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}})
