/* fp8_quantise: codes of x under one scale, in x's layout and transposed, and the largest magnitude so far (ops/lowbit/fp8.h).
 *
 * FP8 products read their operands along the dim that is summed over. An operand of two products therefore exists in both layouts. Elements
 * that aren't finite don't count for the largest magnitude. */
#include "ops/lowbit/fp8_rows.h"

static const AttrDef fp8_quantise_attrs[] = {ATTR_DTYPE(Fp8QuantiseAttrs, dtype), {0}};

enum { IN_X, IN_SCALE, IN_AMAX };
enum { OUT_CODES, OUT_CODES_T, OUT_AMAX };

/* x (...,C), scale f32 (4), [amax f32 (1)] -> codes (...,C), codes_t (C, rows of x), amax' in place. */
static Status fp8_quantise_infer(Node *node)
{
    const Fp8QuantiseAttrs *attrs = node->attrs;
    DType                   dtype = fp8_dtype(attrs->dtype);
    FAIL_IF(!(DT_SET(dtype) & DT_SET_FP8), ERR_INVALID, "dtype is %s; expected e4m3 or e5m2", dtype_info(dtype)->name);
    TRY(infer_float(node, IN_X, "x", 2));
    TRY(infer_input(node, IN_SCALE, "scale", DT_SET_F32, DIMS(FP8_SCALE_FLOATS)));
    if (node->in[IN_AMAX]) TRY(infer_input(node, IN_AMAX, "amax", DT_SET_F32, DIMS(1)));
    const TensorType *x = &node->in[IN_X]->type;
    node->out[OUT_CODES]->type = type_as(x, dtype);
    node->out[OUT_CODES_T]->type = type_make(dtype, 2, type_cols(x), type_rows(x));
    node->out[OUT_AMAX]->type = node->in[IN_AMAX] ? node->in[IN_AMAX]->type : (TensorType){0};
    return OK;
}

static OpCost fp8_quantise_cost(const Node *node)
{
    return cost_streaming(node, 2.0 * (double)type_numel(&node->in[IN_X]->type));
}

enum { EDGE = 64 }; /* a task encodes EDGE rows, EDGE columns at a time */

typedef struct Quantise {
    const KernelArgs *args;
    int64_t           rows, cols;
    uint32_t         *most; /* largest magnitude of each task */
} Quantise;

/* Encodes `count` elements from `at` on, EDGE at most. Returns the largest finite magnitude. */
static uint32_t encode_part(const Quantise *q, int64_t at, int64_t count, uint8_t *codes)
{
    const Fp8QuantiseAttrs *attrs = q->args->attrs;
    const float            *scale = q->args->in[IN_SCALE].data;
    float                   scratch[EDGE];
    return fp8_encode_scaled(tile_load(&q->args->in[IN_X], at, count, scratch), count, scale[FP8_SCALE], fp8_dtype(attrs->dtype), codes);
}

static void quantise_task(void *context, int64_t task, int worker)
{
    const Quantise *q = context;
    uint8_t        *codes = q->args->out[OUT_CODES].data, *codes_t = q->args->out[OUT_CODES_T].data, tile[EDGE][EDGE];
    int64_t         row = task * EDGE, rows = min_i64(EDGE, q->rows - row);
    uint32_t        most = 0;
    (void)worker;
    for (int64_t col = 0; col < q->cols; col += EDGE) {
        int64_t cols = min_i64(EDGE, q->cols - col);
        for (int64_t i = 0; i < rows; i++) {
            int64_t  at = (row + i) * q->cols + col;
            uint32_t part = encode_part(q, at, cols, tile[i]);
            if (part > most) most = part;
            if (codes) memcpy(codes + at, tile[i], (size_t)cols);
        }
        for (int64_t j = 0; j < cols && codes_t; j++)
            for (int64_t i = 0; i < rows; i++) codes_t[(col + j) * q->rows + row + i] = tile[i][j];
    }
    q->most[task] = most;
}

static size_t fp8_quantise_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return (size_t)div_up(type_rows(&node->in[IN_X]->type), EDGE) * sizeof(uint32_t);
}

static Status fp8_quantise_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[IN_X].type;
    Quantise          q = {.args = args, .rows = type_rows(x), .cols = type_cols(x), .most = args->workspace};
    int64_t           tasks = div_up(q.rows, EDGE);
    float            *amax = args->out[OUT_AMAX].data;
    pool_run(args->pool, tasks, quantise_task, &q);
    for (int64_t i = 0; i < tasks && amax; i++) *amax = fmaxf(*amax, small_value(q.most[i]));
    return OK;
}

const OpDef op_fp8_quantise = {
    .id = OP_FP8_QUANTISE,
    .name = "fp8_quantise",
    .synopsis = "codes = FP8 codes of x times scale, codes_t = their transpose; amax' = the larger of amax and max |x|, over "
                "finite elements",
    .num_in = 3,
    .num_out = 3,
    .min_in = 2,
    .alias = {{.out = OUT_AMAX, .in = IN_AMAX}},
    .num_alias = 1,
    .attrs_size = sizeof(Fp8QuantiseAttrs),
    .attrs = fp8_quantise_attrs,
    .infer = fp8_quantise_infer,
    .cost = fp8_quantise_cost,
    .workspace = fp8_quantise_workspace,
    .cpu = {{DT_SET_FLOAT, fp8_quantise_cpu, "reference", {{.out = 1u << OUT_CODES | 1u << OUT_CODES_T, .dtypes = DT_SET_FP8}}}},
    .holds = {[IN_SCALE] = HOLDS_SCALE, [IN_AMAX] = HOLDS_SQUARES},
    .samples = "[1,1], [4], [1]\n"
               "[3,50], [4], [1] {dtype=e5m2}\n"
               "[2,100,144], [4]\n"
               "[208,150], [4], [1] {dtype=e5m2}\n"
               "[144,272], [4], [1]\n",
    .large = "[2,1024,3072], [4], [1]\n"
             "[2,1024,1024], [4], [1] {dtype=e5m2}\n",
};
