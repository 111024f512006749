/* qkv_norm_rope: prepares a layer's packed queries, keys and values for attention: each query and key head is RMS-normed (if weights are
 * given) and rotated by its position; values are copied.
 *
 * A packed row is H query heads, G key heads, G value heads of D elements each. */
#include "ops/attention/rope_row.h"
#include "ops/norms/rms_row.h"
#include "ops/vec_wide.h"

static const AttrDef qkv_attrs[] = {
    ATTR_INT(QkvAttrs, num_heads, 0), ATTR_INT(QkvAttrs, num_kv_heads, 0), ATTR_INT(QkvAttrs, head_dim, 0),
    ATTR_FLOAT(QkvAttrs, eps, 1e-6),  ATTR_FLOAT(QkvAttrs, offset, 0),     {0},
};

enum { IN_QKV, IN_WQ, IN_WK, IN_TABLE, IN_POSITIONS };

/* qkv (B,T,(H+2G)D), [wq (D)], [wk (D)], table (P,D) f32, positions i32 (B,T) -> qkv' of qkv's type, rstd (B,T,H+G)
 * f32. */
static Status qkv_norm_rope_infer(Node *node)
{
    const QkvAttrs *attrs = node->attrs;
    int64_t         heads = attrs->num_heads + 2 * attrs->num_kv_heads, head_dim = attrs->head_dim;
    FAIL_IF(attrs->num_heads < 1 || attrs->num_kv_heads < 1 || head_dim < 2 || head_dim % 2 || head_dim > ROPE_MAX_HEAD_DIM, ERR_INVALID,
            "attributes num_heads %lld, num_kv_heads %lld, head_dim %lld: expected heads, and an even head_dim up to %d",
            (long long)attrs->num_heads, (long long)attrs->num_kv_heads, (long long)head_dim, ROPE_MAX_HEAD_DIM);
    TRY(infer_eps(attrs->eps));
    TRY(infer_input(node, IN_QKV, "qkv", DT_SET_DECODE, DIMS(-1, -1, heads * head_dim)));
    const TensorType *qkv = &node->in[IN_QKV]->type;
    FAIL_IF(!node->in[IN_WQ] != !node->in[IN_WK], ERR_INVALID, "wq and wk come together or not at all");
    if (node->in[IN_WQ]) {
        TRY(infer_input(node, IN_WQ, "wq", DT_SET_DECODE, DIMS(head_dim)));
        TRY(infer_input(node, IN_WK, "wk", DT_SET_DECODE, DIMS(head_dim)));
    }
    TRY(infer_input(node, IN_TABLE, "table", DT_SET_F32, DIMS(-1, head_dim)));
    TRY(infer_input(node, IN_POSITIONS, "positions", DT_SET(DT_I32), DIMS(qkv->dim[0], qkv->dim[1])));
    node->out[0]->type = *qkv;
    node->out[1]->type = type_make(DT_F32, 3, qkv->dim[0], qkv->dim[1], attrs->num_heads + attrs->num_kv_heads);
    return OK;
}

/* Without norms backward is linear and reads neither qkv nor rstd, so neither is kept for it. */
static Status qkv_norm_rope_backward(GradBuilder *grad, const Node *node)
{
    Value *wq = node->in[IN_WQ], *wk = node->in[IN_WK];
    bool   dqkv_wanted = grad_wanted(grad, node->in[IN_QKV]);
    bool   dwq_wanted = wq && grad_wanted(grad, wq), dwk_wanted = wk && grad_wanted(grad, wk);
    if (!dqkv_wanted && !dwq_wanted && !dwk_wanted) return OK;
    Value   *in[] = {grad_of(grad, node->out[0]),
                   wq ? node->in[IN_QKV] : NULL,
                     wq,
                     wk,
                     node->in[IN_TABLE],
                     node->in[IN_POSITIONS],
                   wq ? node->out[1] : NULL,
                   dwq_wanted ? grad_accumulator(grad, wq) : NULL,
                   dwk_wanted ? grad_accumulator(grad, wk) : NULL};
    Value   *out[NODE_MAX_OUT];
    QkvAttrs attrs = *(const QkvAttrs *)node->attrs;
    if (dwq_wanted) attrs.dw_dtype = grad_dw_dtype(grad, wq, wq->type.dtype);
    if (dwk_wanted && !attrs.dw_dtype) attrs.dw_dtype = grad_dw_dtype(grad, wk, wk->type.dtype);
    TRY(grad_emit(grad, OP_QKV_NORM_ROPE_BWD, &attrs, in, 9, want_bit(dqkv_wanted, 0) | want_bit(dwq_wanted, 1) | want_bit(dwk_wanted, 2),
                  out));
    if (dwq_wanted) grad_set(grad, wq, out[1]);
    if (dwk_wanted) grad_set(grad, wk, out[2]);
    return dqkv_wanted ? grad_add(grad, node->in[IN_QKV], out[0]) : OK;
}

static OpCost qkv_norm_rope_cost(const Node *node)
{
    return cost_streaming(node, (node->in[IN_WQ] ? 7.0 : 3.0) * (double)type_numel(&node->in[IN_QKV]->type));
}

/* Heads that are normed together, so that the square root and division of one don't hold up the others. */
enum { HEADS = 8 };

/* Normalizes and rotates `heads` contiguous query and key heads of a row, at most HEADS; the first `queries` use wq, the rest wk. y, rstd
 * NULL: not wanted. Elements at distance `ahead` are prefetched. */
VEC_ROW void turn_heads(DType dtype, int64_t head_dim, bool norms, const void *x, void *y, int64_t queries, int64_t heads, const float *wq,
                        const float *wk, double eps, float *rstd, const float *cosines, int64_t ahead)
{
    float r[HEADS];
    for (int64_t h = 0; h < heads; h++) {
        vec_ahead_floats(dtype, x, h * head_dim + ahead, head_dim);
        r[h] = norms ? rms_rstd(vec_row_squares(dtype, vec_at(x, dtype, h * head_dim), head_dim), head_dim, eps) : 1;
        if (rstd) rstd[h] = r[h]; /* stored one by one: copying r afterwards would wait for its last store */
    }
    if (!y) return;
    for (int64_t h = 0, n; h < heads; h += n) {
        n = h < queries ? queries : heads - queries;
        rope_heads(dtype, dtype, false, norms, vec_at(x, dtype, h * head_dim), vec_at_mut(y, dtype, h * head_dim), h < queries ? wq : wk,
                   r + h, n, head_dim, cosines, head_dim / 2);
    }
}

/* Normalizes and rotates rows [row, end). */
VEC_ROW void turn_rows(DType dtype, int64_t head_dim, bool norms, const KernelArgs *args, int64_t row, int64_t end, const float *wq,
                       const float *wk)
{
    const QkvAttrs *attrs = args->attrs;
    const int32_t  *positions = args->in[IN_POSITIONS].data;
    int64_t         turned = attrs->num_heads + attrs->num_kv_heads, values = attrs->num_kv_heads * head_dim;
    int64_t         cols = turned * head_dim + values;
    for (; row < end; row++) {
        const void  *x = vec_at(args->in[IN_QKV].data, dtype, row * cols);
        void        *y = args->out[0].data ? vec_at_mut(args->out[0].data, dtype, row * cols) : NULL;
        float       *rstd = args->out[1].data ? (float *)args->out[1].data + row * turned : NULL;
        const float *cosines = (const float *)args->in[IN_TABLE].data + positions[row] * head_dim;
        for (int64_t h = 0; h < turned; h += HEADS) {
            int64_t heads = min_i64(HEADS, turned - h), queries = max_i64(0, min_i64(heads, attrs->num_heads - h));
            turn_heads(dtype, head_dim, norms, vec_at(x, dtype, h * head_dim), y ? vec_at_mut(y, dtype, h * head_dim) : NULL, queries,
                       heads, wq, wk, attrs->eps, rstd ? rstd + h : NULL, cosines, cols);
        }
        if (y && y != x) memcpy(vec_at_mut(y, dtype, cols - values), vec_at(x, dtype, cols - values), (size_t)dtype_bytes(dtype, values));
    }
}

/* WIDE_HEADS: with AVX-512, the number of float heads (of several rows) that are normed before the first is rotated; 40 is one row of a
 * model with 8 billion parameters. Head by head, each rotation would wait for a square root, and fill the processor's queues before it
 * reaches the next loads. */
enum { WIDE_HEADS = 40, LANES = 16, MOST = 128 / LANES };

VEC_WIDE_ROW float head_rstd(int64_t head_dim, const float *x, double eps)
{
    __m512 first = _mm512_setzero_ps(), second = first;
    for (int64_t i = 0; i < head_dim; i += 2 * LANES) {
        __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + LANES);
        first = _mm512_fmadd_ps(a, a, first);
        second = _mm512_fmadd_ps(b, b, second);
    }
    return rms_rstd(vec16_sum(first, second), head_dim, eps);
}

/* Loads a row into registers and keeps it there: compilers would load it again for each head. */
VEC_WIDE_ROW void hold(int64_t head_dim, const float *row, __m512 *held)
{
    for (int64_t k = 0; k < head_dim / LANES; k++) {
        held[k] = _mm512_loadu_ps(row + k * LANES);
        __asm__("" : "+v"(held[k]));
    }
}

/* The same as rope_heads with norms, for contiguous heads; angles: cosines, then sines. */
VEC_WIDE_ROW void rope_heads_wide(int64_t head_dim, const float *x, float *y, const float *w, const float *rstd, int64_t heads,
                                  const __m512 *angles)
{
    int64_t half = head_dim / 2 / LANES;
    __m512  weights[MOST];
    hold(head_dim, w, weights);
#pragma GCC unroll 1
    for (int64_t h = 0; h < heads; h++, x += head_dim, y += head_dim) {
        __m512 scale = _mm512_set1_ps(rstd[h]);
        for (int64_t k = 0; k < half; k++) {
            __m512 first = _mm512_mul_ps(weights[k], _mm512_mul_ps(_mm512_loadu_ps(x + k * LANES), scale));
            __m512 second = _mm512_mul_ps(weights[k + half], _mm512_mul_ps(_mm512_loadu_ps(x + (k + half) * LANES), scale));
            _mm512_storeu_ps(y + k * LANES, _mm512_fmsub_ps(first, angles[k], _mm512_mul_ps(second, angles[k + half])));
            _mm512_storeu_ps(y + (k + half) * LANES, _mm512_fmadd_ps(second, angles[k], _mm512_mul_ps(first, angles[k + half])));
        }
    }
}

/* Normalizes and rotates rows [row, end); head_dim is a compile-time constant, 64 or 128. */
VEC_WIDE_ROW void turn_rows_wide(int64_t head_dim, const KernelArgs *args, int64_t row, int64_t end, const float *wq, const float *wk)
{
    const QkvAttrs *attrs = args->attrs;
    const int32_t  *positions = args->in[IN_POSITIONS].data;
    int64_t         num_q = attrs->num_heads, num_k = attrs->num_kv_heads, turned = num_q + num_k, cols = (turned + num_k) * head_dim;
    int64_t         moved = args->out[0].data == args->in[IN_QKV].data ? 0 : num_k * head_dim /* v elements */, rows;
    float           r[WIDE_HEADS];
    for (; row < end; row += rows) {
        const float *x = (const float *)args->in[IN_QKV].data + row * cols;
        float       *y = (float *)args->out[0].data + row * cols;
        float       *rstd = args->out[1].data ? (float *)args->out[1].data + row * turned : NULL;
        rows = min_i64(end - row, WIDE_HEADS / turned);
#pragma GCC unroll 1
        for (int64_t k = 0, n = 0; k < rows; k++) {
#pragma GCC unroll 1
            for (int64_t h = 0; h < turned; h++, n++) {
                r[n] = head_rstd(head_dim, x + k * cols + h * head_dim, attrs->eps);
                if (rstd) rstd[n] = r[n];
            }
            vec_ahead_floats(DT_F32, x, (k + 1) * cols - moved, moved); /* only v heads: the hardware prefetches the others itself */
        }
#pragma GCC unroll 1
        for (int64_t k = 0; k < rows; k++, x += cols, y += cols) {
            __m512 angles[MOST];
            hold(head_dim, (const float *)args->in[IN_TABLE].data + positions[row + k] * head_dim, angles);
            rope_heads_wide(head_dim, x, y, wq, r + k * turned, num_q, angles);
            rope_heads_wide(head_dim, x + num_q * head_dim, y + num_q * head_dim, wk, r + k * turned + num_q, num_k, angles);
            for (int64_t i = cols - moved; i < cols; i += LANES) _mm512_storeu_ps(y + i, _mm512_loadu_ps(x + i));
        }
    }
}

static bool wide_fits(const KernelArgs *args)
{
    const QkvAttrs *attrs = args->attrs;
    return args->in[IN_QKV].type.dtype == DT_F32 && args->out[0].data && (attrs->head_dim == 64 || attrs->head_dim == 128) &&
           attrs->num_heads + attrs->num_kv_heads <= WIDE_HEADS;
}

VEC_WIDE static void turn_floats_wide(const KernelArgs *args, int64_t row, int64_t end, const float *wq, const float *wk)
{
    if (((const QkvAttrs *)args->attrs)->head_dim == 64)
        turn_rows_wide(64, args, row, end, wq, wk);
    else
        turn_rows_wide(128, args, row, end, wq, wk);
}

VEC_TASK(qkv_norm_rope_task)
{
    const KernelArgs *args = context;
    const QkvAttrs   *attrs = args->attrs;
    const TensorType *qkv = &args->in[IN_QKV].type;
    int64_t           step = rows_moved(args, type_rows(qkv), type_cols(qkv)), row = task * step, end = min_i64(type_rows(qkv), row + step);
    float             scratch_q[ROPE_MAX_HEAD_DIM], scratch_k[ROPE_MAX_HEAD_DIM];
    (void)worker;
    if (args->in[IN_WQ].data) {
        const float *wq = rms_weights(&args->in[IN_WQ], attrs->offset, 0, attrs->head_dim, scratch_q);
        const float *wk = rms_weights(&args->in[IN_WK], attrs->offset, 0, attrs->head_dim, scratch_k);
        if (wide && wide_fits(args))
            turn_floats_wide(args, row, end, wq, wk);
        else
            ROPE_OF(VEC_OF_ANY, attrs->head_dim, turn_rows, qkv->dtype, true, args, row, end, wq, wk);
    } else {
        ROPE_OF(VEC_OF_ANY, attrs->head_dim, turn_rows, qkv->dtype, false, args, row, end, NULL, NULL);
    }
}

static Status qkv_norm_rope_cpu(const KernelArgs *args)
{
    const TensorType *qkv = &args->in[IN_QKV].type;
    TRY(rope_check_positions(&args->in[IN_POSITIONS], &args->in[IN_TABLE]));
    pool_run(args->pool, div_up(type_rows(qkv), rows_moved(args, type_rows(qkv), type_cols(qkv))), qkv_norm_rope_task, (void *)args);
    return OK;
}

const OpDef op_qkv_norm_rope = {
    .id = OP_QKV_NORM_ROPE,
    .name = "qkv_norm_rope",
    .synopsis = "q and k heads of packed rows: rope(rms_norm(head) (w + offset)), or rope(head) without weights; v heads are "
                "copied",
    .num_in = 5,
    .num_out = 2,
    .min_in = 5,
    .optional_in = 1u << IN_WQ | 1u << IN_WK,
    .inplace = 1u << 0,
    .attrs_size = sizeof(QkvAttrs),
    .attrs = qkv_attrs,
    .infer = qkv_norm_rope_infer,
    .backward = qkv_norm_rope_backward,
    .cost = qkv_norm_rope_cost,
    .cpu = {{DT_SET_DECODE, qkv_norm_rope_cpu, "reference"}},
    .params = 1u << IN_WQ | 1u << IN_WK,
    .constants = 1u << IN_TABLE,
    .samples = "[2,3,64], [8], [8], [5,8], i32[2,3] below=5 {num_heads=4, num_kv_heads=2, head_dim=8, offset=1}\n"
               "[2,3,64], [8], [8], [5,8], i32[2,3] below=5 {num_heads=4, num_kv_heads=2, head_dim=8}\n"
               "[2,3,64], _, _, [5,8], i32[2,3] below=5 {num_heads=4, num_kv_heads=2, head_dim=8}\n"
               "[2,2,128], [8], [8], [5,8], i32[2,2] below=5 {num_heads=10, num_kv_heads=3, head_dim=8}\n"
               "[2,90,320], [64], [64], [50,64], i32[2,90] below=50 {num_heads=3, num_kv_heads=1, head_dim=64, eps=0.01}\n",
    .large = "[2,200,2048], [128], [128], [256,128], i32[2,200] below=256 {num_heads=8, num_kv_heads=4, head_dim=128}\n",
};
