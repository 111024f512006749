/* swiglu: silu(gate) * up, with silu(x) = x / (1 + e^-x). With attribute gelu: gelu(gate) * up, where gelu is its tanh form. */
#include "ops/elementwise/gelu.h"
#include "ops/lowbit/fp8_rows.h"

static const AttrDef swiglu_attrs[] = {ATTR_DTYPE(SwigluAttrs, codes), ATTR_BOOL(SwigluAttrs, gelu, false), {0}};

enum { IN_GATE, IN_UP, IN_SCALE, IN_AMAX };
enum { OUT_H, OUT_CODES, OUT_MORE, OUT_AMAX };

/* h's type, from the type of gate, or of gate and up packed. */
static TensorType type_of_h(const TensorType *gate, bool packed)
{
    TensorType h = *gate;
    if (packed) h.dim[h.ndim - 1] /= 2;
    return h;
}

static bool swiglu_codes_fit(const Node *node, int64_t whole)
{
    TensorType h = type_of_h(&node->in[0]->type, !node->in[1]);
    return codes_fit(node, &h, whole, 1u << IN_GATE | 1u << IN_UP);
}

/* gate, up (...,F), or only packed rows (gate F, then up F) (...,2F) -> h (...,F) of gate's dtype, [codes and scales of h, see OpCodes]. */
static Status swiglu_infer(Node *node)
{
    TRY(infer_float(node, 0, "gate", 2));
    const TensorType *gate = &node->in[0]->type;
    if (node->in[1]) {
        TRY(infer_like(node, 1, "up", DT_SET_DECODE, gate));
    } else {
        char got[64];
        FAIL_IF(type_cols(gate) % 2, ERR_INVALID, "packed gate and up is %s, expected an even last dim", type_text(gate, got));
    }
    node->out[0]->type = type_of_h(gate, !node->in[1]);
    return infer_codes(node, ((const SwigluAttrs *)node->attrs)->codes);
}

static Status swiglu_backward(GradBuilder *grad, const Node *node)
{
    Value      *gate = node->in[0], *up = node->in[1], *in[] = {grad_of(grad, node->out[0]), gate, up}, *out[NODE_MAX_OUT];
    uint32_t    want = want_bit(grad_wanted(grad, gate), 0) | want_bit(up && grad_wanted(grad, up), 1);
    SwigluAttrs attrs = {.gelu = ((const SwigluAttrs *)node->attrs)->gelu};
    if (!want) return OK;
    TRY(grad_emit(grad, OP_SWIGLU_BWD, &attrs, in, 3, want, out));
    if (want & 1) TRY(grad_add(grad, gate, out[0]));
    return want & 2 ? grad_add(grad, up, out[1]) : OK;
}

static OpCost swiglu_cost(const Node *node)
{
    TensorType h = type_of_h(&node->in[0]->type, !node->in[1]);
    return cost_streaming(node, 12.0 * (double)type_numel(&h));
}

/* Computes at most VEC_BLOCK elements of h in f32, from gate and up in `dtype`. */
VEC_ROW void swiglu_block(DType dtype, bool gelu, bool wide, float *h, const void *gate, const void *up, int64_t count)
{
    float e[VEC_BLOCK];
    VEC_LOOP
    for (int64_t i = 0; i < count; i++) {
        float g = vec_get(gate, dtype, i);
        e[i] = -(gelu ? gelu_argument(g) : g);
    }
    vec_exps(e, count, wide);
    VEC_LOOP
    for (int64_t i = 0; i < count; i++) h[i] = vec_get(gate, dtype, i) / (1.0f + e[i]) * vec_get(up, dtype, i);
}

/* Computes `count` elements like swiglu_block, prefetching inputs `ahead` elements further on. */
VEC_ROW void swiglu_tile(DType dtype, bool gelu, bool wide, float *h, const void *gate, const void *up, int64_t count, int64_t ahead)
{
    int64_t i = 0;
    for (; i + VEC_BLOCK <= count; i += VEC_BLOCK) {
        vec_ahead(gate, dtype, i + ahead);
        vec_ahead(up, dtype, i + ahead);
        swiglu_block(dtype, gelu, wide, h + i, vec_at(gate, dtype, i), vec_at(up, dtype, i), VEC_BLOCK);
    }
    for (; i + VEC_PART <= count; i += VEC_PART)
        swiglu_block(dtype, gelu, wide, h + i, vec_at(gate, dtype, i), vec_at(up, dtype, i), VEC_PART);
    swiglu_block(dtype, gelu, wide, h + i, vec_at(gate, dtype, i), vec_at(up, dtype, i), count - i);
}

enum {
    PIECE = 8 * VEC_BLOCK /* columns of a row at a time */,
    AHEAD = 3072 /* how many elements to prefetch ahead at least, rounded up to whole rows */
};

VEC_TASK(swiglu_task)
{
    const KernelArgs *args = context;
    const TensorView *gate = &args->in[0], *h = &args->out[0], *up = args->in[1].data ? &args->in[1] : gate;
    TensorType        type = type_of_h(&gate->type, up == gate);
    int64_t           cols = type_cols(&type), stride = type_cols(&gate->type), up_at = up == gate ? cols : 0;
    int64_t           step = rows_moved(args, type_rows(&type), cols), end = min_i64(type_rows(&type), (task + 1) * step);
    int64_t           ahead = div_up(AHEAD, max_i64(stride, 1)) * stride;
    float             scratch_g[PIECE], scratch_u[PIECE], scratch_h[PIECE];
    RowCodes          codes = row_codes(args, &op_swiglu.codes, &type);
    DType             dtype = TILE_DTYPE(gate, up);
    bool              gelu = ((const SwigluAttrs *)args->attrs)->gelu;
    (void)worker;
    for (int64_t row = task * step; row < end; row++)
        for (int64_t c = 0; c < cols; c += PIECE) {
            int64_t     n = min_i64(PIECE, cols - c), at = row * stride + c;
            const void *g = tile_in(gate, dtype, at, n, scratch_g), *u = tile_in(up, dtype, at + up_at, n, scratch_u);
            float      *result = h->data ? tile_result(h, row * cols + c, scratch_h) : scratch_h;
            if (gelu)
                VEC_OF(dtype, swiglu_tile, true, wide, result, g, u, n, ahead);
            else
                VEC_OF(dtype, swiglu_tile, false, wide, result, g, u, n, ahead);
            row_codes_store(&codes, row, c, result, n);
            if (h->data) tile_store(h, row * cols + c, result, n);
        }
    row_codes_record(&codes);
}

static Status swiglu_cpu(const KernelArgs *args)
{
    TensorType h = type_of_h(&args->in[0].type, !args->in[1].data);
    pool_run(args->pool, div_up(type_rows(&h), rows_moved(args, type_rows(&h), type_cols(&h))), swiglu_task, (void *)args);
    return OK;
}

const OpDef op_swiglu = {
    .id = OP_SWIGLU,
    .name = "swiglu",
    .synopsis = "h = gate sigmoid(gate) up; gelu: gelu(gate) up, by the approximation with tanh",
    .num_in = 4,
    .num_out = 4,
    .min_in = 1,
    .alias = {{.out = OUT_AMAX, .in = IN_AMAX}},
    .num_alias = 1,
    .attrs_size = sizeof(SwigluAttrs),
    .attrs = swiglu_attrs,
    .infer = swiglu_infer,
    .backward = swiglu_backward,
    .cost = swiglu_cost,
    .cpu = {{DT_SET_DECODE, swiglu_cpu, "reference", {{.out = 1u << OUT_CODES | 1u << OUT_MORE, .dtypes = DT_SET_FP8 | DT_SET_F32}}}},
    .codes = {&op_fp8_rows_quantise, &op_fp8_quantise, OUT_H, OUT_CODES, IN_SCALE, true, offsetof(SwigluAttrs, codes), swiglu_codes_fit},
    .holds = {[IN_SCALE] = HOLDS_SCALE, [IN_AMAX] = HOLDS_SQUARES},
    .constants = 1u << IN_SCALE | 1u << IN_AMAX,
    .samples = "[2,3,14]\n"
               "[2,3,7], [2,3,7]\n"
               "[70,2070]\n"
               "[2,33,768] {codes=e4m3}\n"
               "[3,128], [3,128] {codes=e4m3}\n"
               "[2,33,288], _, [4], [1] {codes=e4m3}\n"
               "[160,32], [160,32], [4] {codes=e5m2}\n"
               "[2,3,14] {gelu=true}\n"
               "[2,33,768] {codes=e4m3, gelu=true}\n",
    .large = "[600,6144]\n"
             "[600,6144] {codes=e4m3}\n"
             "[600,6144], _, [4], [1] {codes=e4m3}\n"
             "[2048,6144], _, [4], [1] {codes=e4m3}\n"
             "[600,6144] {gelu=true}\n"
             "[600,6144] {codes=e4m3, gelu=true}\n"
             "[600,6144], _, [4], [1] {codes=e4m3, gelu=true}\n",
};
