/* qkv_norm_rope: packed queries, keys and values of a layer made ready for attention: each query and key head is
 * RMS-normed (where weights are given) and turned by its position; values pass.
 *
 * A packed row is H query heads, G key heads, G value heads of D each. */
#include "ops/rms_row.h"
#include "ops/rope_row.h"

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
    TRY(infer_input(node, IN_QKV, "qkv", DT_SET_FLOAT, DIMS(-1, -1, heads * head_dim)));
    const TensorType *qkv = &node->in[IN_QKV]->type;
    FAIL_IF(!node->in[IN_WQ] != !node->in[IN_WK], ERR_INVALID, "wq and wk come together or not at all");
    if (node->in[IN_WQ]) {
        TRY(infer_input(node, IN_WQ, "wq", DT_SET_FLOAT, DIMS(head_dim)));
        TRY(infer_input(node, IN_WK, "wk", DT_SET_FLOAT, DIMS(head_dim)));
    }
    TRY(infer_input(node, IN_TABLE, "table", DT_SET_F32, DIMS(-1, head_dim)));
    TRY(infer_input(node, IN_POSITIONS, "positions", DT_SET(DT_I32), DIMS(qkv->dim[0], qkv->dim[1])));
    node->out[0]->type = *qkv;
    node->out[1]->type = type_make(DT_F32, 3, qkv->dim[0], qkv->dim[1], attrs->num_heads + attrs->num_kv_heads);
    return OK;
}

/* Without norms backward is linear and reads neither qkv nor rstd, so that neither is kept. */
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

/* Heads that are normed together: the square roots and divisions of one don't wait for those of another. */
enum { HEADS = 8 };

/* `heads` query or key heads beside each other, at most HEADS, from element `at` on; w NULL: no norm; rstd NULL: not wanted. */
VEC_ROW void turn_heads(DType dtype, const KernelArgs *args, int64_t at, int64_t heads, const float *w, const float *cosines, float *rstd)
{
    const QkvAttrs *attrs = args->attrs;
    int64_t         head_dim = attrs->head_dim;
    const void     *x = vec_at(args->in[IN_QKV].data, dtype, at);
    float           r[HEADS];
    for (int64_t h = 0; h < heads; h++)
        r[h] = w ? rms_rstd(vec_row_squares(dtype, vec_at(x, dtype, h * head_dim), head_dim), head_dim, attrs->eps) : 1;
    if (rstd) memcpy(rstd, r, (size_t)heads * sizeof(float));
    if (!args->out[0].data) return;
    for (int64_t h = 0; h < heads; h++)
        rope_turn(dtype, vec_at(x, dtype, h * head_dim), dtype, vec_at_mut(args->out[0].data, dtype, at + h * head_dim), w, r[h], cosines,
                  head_dim / 2, false);
}

static void qkv_norm_rope_row(const KernelArgs *args, int64_t row, const float *wq, const float *wk)
{
    const QkvAttrs   *attrs = args->attrs;
    const TensorView *qkv = &args->in[IN_QKV], *y = &args->out[0];
    int64_t           head_dim = attrs->head_dim, queries = attrs->num_heads, turned = queries + attrs->num_kv_heads;
    int64_t           at = row * (turned + attrs->num_kv_heads) * head_dim, n;
    const float      *cosines = (const float *)args->in[IN_TABLE].data + ((const int32_t *)args->in[IN_POSITIONS].data)[row] * head_dim;
    float            *rstd = args->out[1].data ? (float *)args->out[1].data + row * turned : NULL;
    for (int64_t h = 0; h < turned; h += n) {
        n = min_i64(HEADS, (h < queries ? queries : turned) - h);
        VEC_OF(qkv->type.dtype, turn_heads, args, at + h * head_dim, n, h < queries ? wq : wk, cosines, rstd ? rstd + h : NULL);
    }
    if (y->data) tile_copy(y, at + turned * head_dim, qkv, at + turned * head_dim, attrs->num_kv_heads * head_dim);
}

VEC_TASK(qkv_norm_rope_task)
{
    const KernelArgs *args = context;
    const QkvAttrs   *attrs = args->attrs;
    int64_t           step = rows_per_task(type_cols(&args->in[IN_QKV].type));
    int64_t           end = min_i64(type_numel(&args->in[IN_POSITIONS].type), (task + 1) * step);
    float             scratch_q[ROPE_MAX_HEAD_DIM], scratch_k[ROPE_MAX_HEAD_DIM];
    const float      *wq = NULL, *wk = NULL;
    (void)worker;
    if (args->in[IN_WQ].data) {
        wq = rms_weights(&args->in[IN_WQ], attrs->offset, 0, attrs->head_dim, scratch_q);
        wk = rms_weights(&args->in[IN_WK], attrs->offset, 0, attrs->head_dim, scratch_k);
    }
    for (int64_t row = task * step; row < end; row++) qkv_norm_rope_row(args, row, wq, wk);
}

static Status qkv_norm_rope_cpu(const KernelArgs *args)
{
    const TensorType *qkv = &args->in[IN_QKV].type;
    TRY(rope_check_positions(&args->in[IN_POSITIONS], &args->in[IN_TABLE]));
    pool_run(args->pool, div_up(type_rows(qkv), rows_per_task(type_cols(qkv))), qkv_norm_rope_task, (void *)args);
    return OK;
}

static const QkvAttrs qkv_small = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .eps = 1e-6};
static const QkvAttrs qkv_large = {.num_heads = 3, .num_kv_heads = 1, .head_dim = 64, .eps = 1e-2};

static const QkvAttrs qkv_offset = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .eps = 1e-6, .offset = 1};

static const OpSample qkv_norm_rope_samples[] = {
    {.in = {{DT_F32, 3, {2, 3, 64}}, {DT_F32, 1, {8}}, {DT_F32, 1, {8}}, {DT_F32, 2, {5, 8}}, {DT_I32, 2, {2, 3}}},
     .attrs = &qkv_offset,
     .int_range = {0, 0, 0, 0, 5}},
    {.in = {{DT_F32, 3, {2, 3, 64}}, {DT_F32, 1, {8}}, {DT_F32, 1, {8}}, {DT_F32, 2, {5, 8}}, {DT_I32, 2, {2, 3}}},
     .attrs = &qkv_small,
     .int_range = {0, 0, 0, 0, 5}},
    {.in = {{DT_F32, 3, {2, 3, 64}}, {0}, {0}, {DT_F32, 2, {5, 8}}, {DT_I32, 2, {2, 3}}},
     .attrs = &qkv_small,
     .int_range = {0, 0, 0, 0, 5}},
    {.in = {{DT_F32, 3, {2, 90, 320}}, {DT_F32, 1, {64}}, {DT_F32, 1, {64}}, {DT_F32, 2, {50, 64}}, {DT_I32, 2, {2, 90}}},
     .attrs = &qkv_large,
     .int_range = {0, 0, 0, 0, 50}},
};

static const QkvAttrs large_qkv_128 = {.num_heads = 8, .num_kv_heads = 4, .head_dim = 128, .eps = 1e-6};

/* Shapes of real models. */
static const OpSample qkv_norm_rope_large_samples[] = {
    {.in = {{DT_F32, 3, {2, 200, 2048}}, {DT_F32, 1, {128}}, {DT_F32, 1, {128}}, {DT_F32, 2, {256, 128}}, {DT_I32, 2, {2, 200}}},
     .attrs = &large_qkv_128,
     .int_range = {0, 0, 0, 0, 256}},
};

const OpDef op_qkv_norm_rope = {
    .id = OP_QKV_NORM_ROPE,
    .name = "qkv_norm_rope",
    .synopsis = "q and k heads of packed rows: rope(rms_norm(head) (w + offset)), or rope(head) without weights; v heads pass",
    .num_in = 5,
    .num_out = 2,
    .min_in = 5,
    .optional_in = 1u << IN_WQ | 1u << IN_WK,
    .flags = OP_INPLACE,
    .attrs_size = sizeof(QkvAttrs),
    .attrs = qkv_attrs,
    .infer = qkv_norm_rope_infer,
    .backward = qkv_norm_rope_backward,
    .cost = qkv_norm_rope_cost,
    .cpu = {{DT_SET_FLOAT, qkv_norm_rope_cpu, "reference"}},
    .params = 1u << IN_WQ | 1u << IN_WK,
    .constants = 1u << IN_TABLE,
    .samples = qkv_norm_rope_samples,
    .num_samples = sizeof qkv_norm_rope_samples / sizeof qkv_norm_rope_samples[0],
    .large = qkv_norm_rope_large_samples,
    .num_large = sizeof qkv_norm_rope_large_samples / sizeof qkv_norm_rope_large_samples[0],
};
