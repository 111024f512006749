/* add_rms_norm: s = a + b, y = rms_norm(s) w: a residual sum and the norm that reads it, in one pass over memory.
 *
 * y is the norm of s as it is stored (rounded), so rms_norm(s, w) gives the same bits. */
#include "ops/norms/rms_row.h"

static const AttrDef add_rms_norm_attrs[] = {
    ATTR_FLOAT(RmsNormAttrs, eps, 1e-6), ATTR_FLOAT(RmsNormAttrs, offset, 0), ATTR_DTYPE(RmsNormAttrs, codes), {0}};

enum { IN_A, IN_B, IN_W, IN_SCALE, IN_AMAX };
enum { OUT_S, OUT_Y, OUT_RSTD, OUT_CODES, OUT_MORE, OUT_AMAX };

static bool add_rms_norm_codes_fit(const Node *node, int64_t whole)
{
    return codes_fit(node, &node->in[IN_A]->type, whole, 1u << IN_A | 1u << IN_B | 1u << IN_W);
}

/* a, b (..., C), w (C) -> s, y (..., C) of a's dtype, rstd (...) f32, [the codes of y, see OpCodes]. */
static Status add_rms_norm_infer(Node *node)
{
    TRY(infer_eps(((const RmsNormAttrs *)node->attrs)->eps));
    TRY(infer_float(node, 0, "a", 2));
    const TensorType *a = &node->in[0]->type;
    TRY(infer_like(node, 1, "b", DT_SET_DECODE, a));
    TRY(infer_input(node, 2, "w", DT_SET_DECODE, DIMS(type_cols(a))));
    node->out[0]->type = node->out[1]->type = *a;
    node->out[2]->type = type_without_last(a, DT_F32);
    return infer_codes(node, ((const RmsNormAttrs *)node->attrs)->codes);
}

/* d/da = d/db = ds + the gradient through the norm; this sum is made once for both. */
static Status add_rms_norm_backward(GradBuilder *grad, const Node *node)
{
    Value *a = node->in[0], *b = node->in[1], *w = node->in[2];
    Value *ds = grad_of(grad, node->out[0]), *dy = grad_of(grad, node->out[1]);
    bool   ds_wanted = grad_wanted(grad, a) || grad_wanted(grad, b), dw_wanted = grad_wanted(grad, w);
    if (dy && (ds_wanted || dw_wanted)) {
        Value       *in[] = {dy, node->out[0], w, node->out[2], NULL, dw_wanted ? grad_accumulator(grad, w) : NULL}, *out[NODE_MAX_OUT];
        uint32_t     want = want_bit(ds_wanted, 0) | want_bit(dw_wanted, 1);
        RmsNormAttrs attrs = *(const RmsNormAttrs *)node->attrs;
        attrs.codes = 0;
        if (dw_wanted) attrs.dw_dtype = grad_dw_dtype(grad, w, w->type.dtype);
        TRY(grad_emit(grad, OP_RMS_NORM_BWD, &attrs, in, 6, want, out));
        if (dw_wanted) grad_set(grad, w, out[1]);
        if (ds && ds_wanted) {
            Value *sum[] = {ds, out[0]};
            TRY(grad_emit(grad, OP_ADD, NULL, sum, 2, 1, out));
        }
        ds = out[0];
    }
    if (!ds_wanted) return OK;
    TRY(grad_add(grad, a, ds));
    return grad_add(grad, b, ds);
}

/* Computes y again from s. */
static Status add_rms_norm_rebuild(Graph *graph, const Node *node, int k, Value **out_value)
{
    *out_value = NULL;
    if (k != 1 || !node->out[0]) return OK;
    Value *in[] = {node->out[0], node->in[2]};
    Node  *norm;
    TRY(graph_add_node(graph, &op_rms_norm, node->attrs, node->out[1]->name, in, 2, 1, &norm));
    *out_value = norm->out[0];
    return OK;
}

static OpCost add_rms_norm_cost(const Node *node)
{
    return cost_streaming(node, 5.0 * (double)type_numel(&node->in[0]->type));
}

/* Holds RMS_ROWS rows of s for each worker, used if s isn't wanted. */
static size_t add_rms_norm_workspace(const Node *node, int num_workers)
{
    return (size_t)num_workers * RMS_ROWS * (size_t)type_cols(&node->in[0]->type) * sizeof(float);
}

VEC_ROW void add_tile(DType dtype, void *s, const void *a, const void *b, int64_t count)
{
    VEC_EACH(dtype, s, count, i, n, vec8_some(dtype, a, i, n) + vec8_some(dtype, b, i, n));
}

/* Adds elements [at, at + count) of a and b and stores the sums in s from s_at on. */
static void add_elements(const TensorView *s, int64_t s_at, const TensorView *a, const TensorView *b, int64_t at, int64_t count)
{
    float scratch_a[TILE], scratch_b[TILE], scratch_s[TILE];
    DType dtype = TILE_DTYPE(a, b, s);
    for (int64_t i = 0; i < count; i += TILE) {
        int64_t n = min_i64(TILE, count - i);
        void   *result = tile_out(s, dtype, s_at + i, scratch_s);
        VEC_OF(dtype, add_tile, result, tile_in(a, dtype, at + i, n, scratch_a), tile_in(b, dtype, at + i, n, scratch_b), n);
        tile_done(s, dtype, s_at + i, result, n);
    }
}

VEC_TASK(add_rms_norm_task)
{
    const KernelArgs   *args = context;
    const RmsNormAttrs *attrs = args->attrs;
    const TensorView   *a = &args->in[0];
    RowCodes            codes = row_codes(args, &op_add_rms_norm.codes, &a->type);
    float              *rstd = args->out[2].data;
    int64_t             cols = type_cols(&a->type), step = rows_moved(args, type_rows(&a->type), cols);
    int64_t             end = min_i64(type_rows(&a->type), (task + 1) * step);
    bool                keep = args->out[0].data != NULL;
    TensorView          s = {(float *)args->workspace + worker * RMS_ROWS * cols, a->type};
    if (keep) s = args->out[0];
    for (int64_t row = task * step; row < end; row += rms_rows(cols)) {
        int64_t rows = min_i64(rms_rows(cols), end - row), at = row * cols, s_at = keep ? at : 0;
        float   r[RMS_ROWS];
        add_elements(&s, s_at, a, &args->in[1], at, rows * cols);
        if (!args->out[1].data && !rstd && !row_codes_wanted(&codes)) continue;
        rms_norm_rows(&args->out[1], &codes, &s, &args->in[2], attrs, at, s_at, rows, cols, r);
        if (rstd) memcpy(rstd + row, r, (size_t)rows * sizeof(float));
    }
    row_codes_record(&codes);
}

static Status add_rms_norm_cpu(const KernelArgs *args)
{
    const TensorType *a = &args->in[0].type;
    pool_run(args->pool, div_up(type_rows(a), rows_moved(args, type_rows(a), type_cols(a))), add_rms_norm_task, (void *)args);
    return OK;
}

const OpDef op_add_rms_norm = {
    .id = OP_ADD_RMS_NORM,
    .name = "add_rms_norm",
    .synopsis = "s = a + b, y = s rstd w, rstd = 1 / sqrt(mean(s^2) + eps)",
    .num_in = 5,
    .num_out = 6,
    .min_in = 3,
    .alias = {{.out = OUT_AMAX, .in = IN_AMAX}},
    .num_alias = 1,
    .inplace = 1u << 0,
    .attrs_size = sizeof(RmsNormAttrs),
    .attrs = add_rms_norm_attrs,
    .infer = add_rms_norm_infer,
    .backward = add_rms_norm_backward,
    .rebuild = add_rms_norm_rebuild,
    .cost = add_rms_norm_cost,
    .workspace = add_rms_norm_workspace,
    .cpu = {{DT_SET_DECODE, add_rms_norm_cpu, "reference", {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}}},
    .codes = {&op_fp8_rows_quantise, &op_fp8_quantise, OUT_Y, OUT_CODES, IN_SCALE, false, offsetof(RmsNormAttrs, codes),
              add_rms_norm_codes_fit},
    .holds = {[IN_SCALE] = HOLDS_SCALE, [IN_AMAX] = HOLDS_SQUARES},
    .constants = 1u << IN_SCALE | 1u << IN_AMAX,
    .params = 1u << 2,
    .grad_outputs = 1u << 1,
    .samples = "[2,3,16], [2,3,16], [16]\n"
               "[70,1037], [70,1037], [1037]\n"
               "[2,33,384], [2,33,384], [384] {codes=e4m3}\n"
               "[2,33,80], [2,33,80], [80], [4], [1] {codes=e4m3}\n",
    .large = "[600,1024], [600,1024], [1024]\n"
             "[600,1024], [600,1024], [1024] {codes=e4m3}\n"
             "[600,1024], [600,1024], [1024], [4], [1] {codes=e4m3}\n",
};
