/* fp8_rows_quantise: rows as e4m3 codes with a scale for each 128 elements of a row, from their own largest magnitude
 * (ops/lowbit/fp8_tiles.h). Scales are stored as products on sm_90 read them: for each block of columns the scales of all rows side by
 * side. */
#include "ops/lowbit/fp8_rows.h"

enum { OUT_CODES, OUT_SCALE };

/* x (...,C) -> codes e4m3 (...,C), scale f32 (C / 128, rows of x), quotients rounded up. */
static Status fp8_rows_quantise_infer(Node *node)
{
    TRY(infer_float(node, 0, "x", 2));
    const TensorType *x = &node->in[0]->type;
    node->out[OUT_CODES]->type = type_as(x, DT_E4M3);
    node->out[OUT_SCALE]->type = type_make(DT_F32, 2, div_up(type_cols(x), FP8_TILE), type_rows(x));
    return OK;
}

static OpCost fp8_rows_quantise_cost(const Node *node)
{
    return cost_streaming(node, 4.0 * (double)type_numel(&node->in[0]->type));
}

static void quantise_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[0];
    RowCodes          q = {.codes = args->out[OUT_CODES].data,
                           .scales = args->out[OUT_SCALE].data,
                           .rows = type_rows(&x->type),
                           .cols = type_cols(&x->type),
                           .dtype = x->type.dtype};
    int64_t           each = rows_per_task(q.cols), end = min_i64(q.rows, (task + 1) * each);
    float             scratch[TILE];
    (void)worker;
    for (int64_t row = task * each; row < end; row++)
        for (int64_t c = 0; c < q.cols; c += TILE) {
            int64_t n = min_i64(TILE, q.cols - c);
            row_codes_store(&q, row, c, tile_load(x, row * q.cols + c, n, scratch), n);
        }
}

static Status fp8_rows_quantise_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[0].type;
    pool_run(args->pool, div_up(type_rows(x), rows_per_task(type_cols(x))), quantise_task, (void *)args);
    return OK;
}

const OpDef op_fp8_rows_quantise = {
    .id = OP_FP8_ROWS_QUANTISE,
    .name = "fp8_rows_quantise",
    .synopsis = "codes = e4m3 codes of x / scale, scale = max |x| / 448 of each 128 elements along a row",
    .num_in = 1,
    .num_out = 2,
    .min_in = 1,
    .infer = fp8_rows_quantise_infer,
    .cost = fp8_rows_quantise_cost,
    .cpu = {{DT_SET_FLOAT, fp8_rows_quantise_cpu, "reference", {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E4M3)}}}},
    .samples = "[1,1]\n"
               "[3,50]\n"
               "[2,100,256]\n"
               "[131,328]\n",
    .large = "[2,1024,1024]\n"
             "[2,1000,3080]\n",
};
