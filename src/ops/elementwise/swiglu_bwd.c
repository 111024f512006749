/* swiglu_bwd: dgate = dh up s (1 + gate (1 - s)) and dup = dh gate s, with s = sigmoid(gate). With attribute gelu s is the sigmoid of
 * gelu's argument u(gate), and 1 - s is multiplied by du / dgate. */
#include "ops/elementwise/gelu.h"
#include "ops/lowbit/fp8_rows.h"

static const AttrDef swiglu_bwd_attrs[] = {ATTR_DTYPE(SwigluAttrs, codes), ATTR_BOOL(SwigluAttrs, gelu, false), {0}};

enum { IN_DH, IN_GATE, IN_UP, IN_SCALE, IN_AMAX };
enum { OUT_DGATE, OUT_DUP, OUT_CODES, OUT_MORE, OUT_AMAX };

static bool swiglu_bwd_codes_fit(const Node *node, int64_t whole)
{
    return !node->in[IN_UP] && codes_fit(node, &node->in[IN_DH]->type, whole, 1u << IN_DH | 1u << IN_GATE);
}

/* dh (...,F), gate, up (...,F) or only packed (...,2F) -> dgate of gate's type and dup of up's, or dpacked of packed's, [codes and
 * scales of dpacked, see OpCodes]. */
static Status swiglu_bwd_infer(Node *node)
{
    TRY(infer_float(node, 0, "dh", 2));
    TRY(infer_float(node, 1, "gate", 2));
    TensorType gate = node->in[0]->type;
    if (!node->in[2]) gate.dim[gate.ndim - 1] *= 2;
    TRY(infer_like(node, 1, node->in[2] ? "gate" : "packed gate and up", DT_SET_FLOAT, &gate));
    if (node->in[2]) TRY(infer_like(node, 2, "up", DT_SET_FLOAT, &gate));
    node->out[0]->type = node->in[1]->type;
    node->out[1]->type = node->in[2] ? node->in[2]->type : (TensorType){0};
    return infer_codes(node, ((const SwigluAttrs *)node->attrs)->codes);
}

static OpCost swiglu_bwd_cost(const Node *node)
{
    return cost_streaming(node, 18.0 * (double)type_numel(&node->in[0]->type));
}

/* Computes at most VEC_BLOCK elements of dgate and dup in f32, from inputs in `dtype`. */
VEC_ROW void swiglu_bwd_block(DType dtype, bool gelu, bool wide, float *dgate, float *dup, const void *dh, const void *gate, const void *up,
                              int64_t count)
{
    float e[VEC_BLOCK];
    VEC_LOOP
    for (int64_t i = 0; i < count; i++) {
        float g = vec_get(gate, dtype, i);
        e[i] = -(gelu ? gelu_argument(g) : g);
    }
    vec_exps(e, count, wide);
    VEC_LOOP
    for (int64_t i = 0; i < count; i++) {
        float g = vec_get(gate, dtype, i), d = vec_get(dh, dtype, i), s = 1.0f / (1.0f + e[i]), act = g * s;
        dgate[i] = d * vec_get(up, dtype, i) * (s + act * (1.0f - s) * (gelu ? gelu_argument_slope(g) : 1.0f));
        dup[i] = d * act;
    }
}

/* Computes `count` elements like swiglu_bwd_block, prefetching gate and up `ahead` elements further on. */
VEC_ROW void swiglu_bwd_tile(DType dtype, bool gelu, bool wide, float *dgate, float *dup, const void *dh, const void *gate, const void *up,
                             int64_t count, int64_t ahead)
{
    int64_t i = 0;
    for (; i + VEC_BLOCK <= count; i += VEC_BLOCK) {
        vec_ahead(gate, dtype, i + ahead);
        vec_ahead(up, dtype, i + ahead);
        swiglu_bwd_block(dtype, gelu, wide, dgate + i, dup + i, vec_at(dh, dtype, i), vec_at(gate, dtype, i), vec_at(up, dtype, i),
                         VEC_BLOCK);
    }
    for (; i + VEC_PART <= count; i += VEC_PART)
        swiglu_bwd_block(dtype, gelu, wide, dgate + i, dup + i, vec_at(dh, dtype, i), vec_at(gate, dtype, i), vec_at(up, dtype, i),
                         VEC_PART);
    swiglu_bwd_block(dtype, gelu, wide, dgate + i, dup + i, vec_at(dh, dtype, i), vec_at(gate, dtype, i), vec_at(up, dtype, i), count - i);
}

enum { PIECE = 8 * VEC_BLOCK }; /* columns of a row at a time */

VEC_TASK(swiglu_bwd_task)
{
    const KernelArgs *args = context;
    const TensorView *dh = &args->in[0], *gate = &args->in[1];
    bool              packed = !args->in[2].data;
    const TensorView *up = packed ? gate : &args->in[2], *dgate = &args->out[0], *dup = packed ? dgate : &args->out[1];
    int64_t           cols = type_cols(&dh->type), stride = packed ? 2 * cols : cols, up_at = packed ? cols : 0;
    int64_t           step = rows_moved(args, type_rows(&dh->type), cols), end = min_i64(type_rows(&dh->type), (task + 1) * step);
    float             scratch_dh[PIECE], scratch_g[PIECE], scratch_u[PIECE], result_g[PIECE], result_u[PIECE];
    RowCodes          codes = row_codes(args, &op_swiglu_bwd.codes, &gate->type);
    DType             dtype = TILE_DTYPE(dh, gate, up);
    bool              gelu = ((const SwigluAttrs *)args->attrs)->gelu;
    (void)worker;
    for (int64_t row = task * step; row < end; row++)
        for (int64_t c = 0; c < cols; c += PIECE) {
            int64_t     n = min_i64(PIECE, cols - c), at = row * stride + c;
            const void *g = tile_in(gate, dtype, at, n, scratch_g), *u = tile_in(up, dtype, at + up_at, n, scratch_u);
            const void *d = tile_in(dh, dtype, row * cols + c, n, scratch_dh);
            float      *to_g = dgate->data ? tile_result(dgate, at, result_g) : result_g;
            float      *to_u = dup->data ? tile_result(dup, at + up_at, result_u) : result_u;
            if (gelu)
                VEC_OF(dtype, swiglu_bwd_tile, true, wide, to_g, to_u, d, g, u, n, stride);
            else
                VEC_OF(dtype, swiglu_bwd_tile, false, wide, to_g, to_u, d, g, u, n, stride);
            row_codes_store(&codes, row, c, to_g, n);
            row_codes_store(&codes, row, cols + c, to_u, n);
            if (dgate->data) tile_store(dgate, at, to_g, n);
            if (dup->data) tile_store(dup, at + up_at, to_u, n);
        }
    row_codes_record(&codes);
}

static Status swiglu_bwd_cpu(const KernelArgs *args)
{
    const TensorType *dh = &args->in[0].type;
    pool_run(args->pool, div_up(type_rows(dh), rows_moved(args, type_rows(dh), type_cols(dh))), swiglu_bwd_task, (void *)args);
    return OK;
}

const OpDef op_swiglu_bwd = {
    .id = OP_SWIGLU_BWD,
    .name = "swiglu_bwd",
    .synopsis = "dgate = dh up s (1 + gate (1 - s)), dup = dh gate s, s = sigmoid(gate); gelu: gradients of gelu(gate) up",
    .num_in = 5,
    .num_out = 5,
    .min_in = 2,
    .inplace = 1u << IN_GATE,
    .alias = {{.out = OUT_AMAX, .in = IN_AMAX}},
    .num_alias = 1,
    .attrs_size = sizeof(SwigluAttrs),
    .attrs = swiglu_bwd_attrs,
    .infer = swiglu_bwd_infer,
    .cost = swiglu_bwd_cost,
    .cpu = {{DT_SET_FLOAT, swiglu_bwd_cpu, "reference", {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}}},
    .codes = {&op_fp8_rows_quantise, &op_fp8_quantise, OUT_DGATE, OUT_CODES, IN_SCALE, true, offsetof(SwigluAttrs, codes),
              swiglu_bwd_codes_fit},
    .holds = {[IN_SCALE] = HOLDS_SCALE, [IN_AMAX] = HOLDS_SQUARES},
    .samples = "[2,3,7], [2,3,14]\n"
               "[2,3,7], [2,3,7], [2,3,7]\n"
               "[70,1035], [70,2070]\n"
               "[2,33,384], [2,33,768] {codes=e4m3}\n"
               "[2,33,144], [2,33,288], _, [4], [1] {codes=e5m2}\n"
               "[160,16], [160,32], _, [4] {codes=e4m3}\n"
               "[2,3,7], [2,3,14] {gelu=true}\n"
               "[2,33,384], [2,33,768] {codes=e4m3, gelu=true}\n",
    .large = "[600,3072], [600,6144]\n"
             "[600,3072], [600,6144] {codes=e4m3}\n"
             "[600,3072], [600,6144], _, [4], [1] {codes=e5m2}\n"
             "[2048,3072], [2048,6144], _, [4], [1] {codes=e5m2}\n"
             "[600,3072], [600,6144] {gelu=true}\n"
             "[600,3072], [600,6144] {codes=e4m3, gelu=true}\n"
             "[600,3072], [600,6144], _, [4], [1] {codes=e4m3, gelu=true}\n",
};
