/* rms_norm: y = x * rstd * (w + offset),  rstd = 1 / sqrt(mean(x^2) + eps), over the last dim.
 *
 * rstd is a second output so that backward reads it instead of computing it again. */
#include "ops/norms/rms_row.h"

static const AttrDef rms_norm_attrs[] = {
    ATTR_FLOAT(RmsNormAttrs, eps, 1e-6), ATTR_FLOAT(RmsNormAttrs, offset, 0), ATTR_DTYPE(RmsNormAttrs, codes), {0}};

enum { IN_X, IN_W, IN_SCALE, IN_AMAX };
enum { OUT_Y, OUT_RSTD, OUT_CODES, OUT_MORE, OUT_AMAX };

static bool rms_norm_codes_fit(const Node *node, int64_t whole)
{
    return codes_fit(node, &node->in[IN_X]->type, whole, 1u << IN_X | 1u << IN_W);
}

/* x (..., C), w (C) -> y (..., C) of x's dtype, rstd (...) f32, [the codes of y, see OpCodes]. */
static Status rms_norm_infer(Node *node)
{
    TRY(infer_eps(((const RmsNormAttrs *)node->attrs)->eps));
    TRY(infer_float(node, 0, "x", 2));
    const TensorType *x = &node->in[0]->type;
    TRY(infer_input(node, 1, "w", DT_SET_DECODE, DIMS(type_cols(x))));
    node->out[0]->type = *x;
    node->out[1]->type = type_without_last(x, DT_F32);
    return infer_codes(node, ((const RmsNormAttrs *)node->attrs)->codes);
}

static Status rms_norm_backward(GradBuilder *grad, const Node *node)
{
    Value   *x = node->in[0], *w = node->in[1], *dy = grad_of(grad, node->out[0]);
    bool     dx_wanted = grad_wanted(grad, x), dw_wanted = grad_wanted(grad, w);
    uint32_t want = want_bit(dx_wanted, 0) | want_bit(dw_wanted, 1);
    if (!dy || !want) return OK;
    RmsNormAttrs attrs = *(const RmsNormAttrs *)node->attrs;
    attrs.codes = 0;
    if (dw_wanted) attrs.dw_dtype = grad_dw_dtype(grad, w, w->type.dtype);
    Value *in[] = {dy, x, w, node->out[1], NULL, dw_wanted ? grad_accumulator(grad, w) : NULL}, *out[NODE_MAX_OUT];
    TRY(grad_emit(grad, OP_RMS_NORM_BWD, &attrs, in, 6, want, out));
    if (dw_wanted) grad_set(grad, w, out[1]);
    return dx_wanted ? grad_add(grad, x, out[0]) : OK;
}

static OpCost rms_norm_cost(const Node *node)
{
    return cost_streaming(node, 4.0 * (double)type_numel(&node->in[0]->type));
}

VEC_TASK(rms_norm_task)
{
    const KernelArgs   *args = context;
    const RmsNormAttrs *attrs = args->attrs;
    const TensorView   *x = &args->in[0];
    RowCodes            codes = row_codes(args, &op_rms_norm.codes, &x->type);
    float              *rstd = args->out[1].data;
    int64_t             cols = type_cols(&x->type), step = rows_moved(args, type_rows(&x->type), cols);
    int64_t             end = min_i64(type_rows(&x->type), (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row += rms_rows(cols)) {
        float   r[RMS_ROWS];
        int64_t rows = min_i64(rms_rows(cols), end - row);
        rms_norm_rows(&args->out[0], &codes, x, &args->in[1], attrs, row * cols, row * cols, rows, cols, r);
        if (rstd) memcpy(rstd + row, r, (size_t)rows * sizeof(float));
    }
    row_codes_record(&codes);
}

static Status rms_norm_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[0].type;
    pool_run(args->pool, div_up(type_rows(x), rows_moved(args, type_rows(x), type_cols(x))), rms_norm_task, (void *)args);
    return OK;
}

const OpDef op_rms_norm = {
    .id = OP_RMS_NORM,
    .name = "rms_norm",
    .synopsis = "y = x rstd (w + offset), rstd = 1 / sqrt(mean(x^2) + eps)",
    .num_in = 4,
    .num_out = 5,
    .min_in = 2,
    .alias = {{.out = OUT_AMAX, .in = IN_AMAX}},
    .num_alias = 1,
    .inplace = 1u << 0,
    .attrs_size = sizeof(RmsNormAttrs),
    .attrs = rms_norm_attrs,
    .infer = rms_norm_infer,
    .backward = rms_norm_backward,
    .cost = rms_norm_cost,
    .cpu = {{DT_SET_DECODE, rms_norm_cpu, "reference", {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}}},
    .codes = {&op_fp8_rows_quantise, &op_fp8_quantise, OUT_Y, OUT_CODES, IN_SCALE, false, offsetof(RmsNormAttrs, codes),
              rms_norm_codes_fit},
    .holds = {[IN_SCALE] = HOLDS_SCALE, [IN_AMAX] = HOLDS_SQUARES},
    .constants = 1u << IN_SCALE | 1u << IN_AMAX,
    .params = 1u << 1,
    .samples = "[2,3,16], [16] {offset=1}\n"
               "[2,3,16], [16] {eps=0.1}\n"
               "[70,1037], [1037]\n"
               "[2,33,384], [384] {codes=e4m3}\n"
               "[2,33,80], [80], [4], [1] {codes=e4m3}\n",
    .large = "[600,1024], [1024]\n"
             "[600,2304], [2304] {offset=1}\n"
             "[100,4096], [4096]\n"
             "[100,4096], [4096] {codes=e4m3}\n"
             "[100,4096], [4096], [4], [1] {codes=e4m3}\n",
};
