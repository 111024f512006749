/* fp8_rows_quantise: rows as e4m3 codes with a scale for each 128 numbers of a row, from their own largest magnitude: ops/fp8_tiles.h
 * says how. Scales lie the way products on sm_90 read them: those of all rows for one block of columns beside each other. */
#include "ops/fp8_tiles.h"
#include "ops/infer.h"

enum { OUT_CODES, OUT_SCALE };

/* x (...,C) -> codes e4m3 (...,C), scale f32 (C / 128, rows of x), divided up. */
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

static void quantise_block(const TensorView *x, int64_t at, int64_t count, uint8_t *codes, float *scale)
{
    float        scratch[FP8_TILE];
    const float *row = tile_load(x, at, count, scratch);
    uint32_t     most = 0;
    for (int64_t i = 0; i < count; i++) most = (small_bits(row[i]) & 0x7FFFFFFFu) > most ? small_bits(row[i]) & 0x7FFFFFFFu : most;
    float of_block = fp8_row_scale(most), inverse = 1 / of_block;
    for (int64_t i = 0; i < count && codes; i++) codes[at + i] = (uint8_t)small_nearest(small_e4m3(), row[i] * inverse);
    if (scale) *scale = of_block;
}

static void quantise_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[0];
    int64_t           rows = type_rows(&x->type), cols = type_cols(&x->type), each = rows_per_task(cols);
    int64_t           end = min_i64(rows, (task + 1) * each);
    float            *scales = args->out[OUT_SCALE].data;
    (void)worker;
    for (int64_t row = task * each; row < end; row++)
        for (int64_t c = 0; c < cols; c += FP8_TILE)
            quantise_block(x, row * cols + c, min_i64(FP8_TILE, cols - c), args->out[OUT_CODES].data,
                           scales ? scales + c / FP8_TILE * rows + row : NULL);
}

static Status fp8_rows_quantise_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[0].type;
    pool_run(args->pool, div_up(type_rows(x), rows_per_task(type_cols(x))), quantise_task, (void *)args);
    return OK;
}

static const OpSample fp8_rows_quantise_samples[] = {
    {.in = {{DT_F32, 2, {1, 1}}}},
    {.in = {{DT_F32, 2, {3, 50}}}},
    {.in = {{DT_F32, 3, {2, 100, 256}}}},
    {.in = {{DT_F32, 2, {131, 328}}}},
};

/* Shapes of real models. */
static const OpSample fp8_rows_quantise_large_samples[] = {
    {.in = {{DT_F32, 3, {2, 1024, 1024}}}},
    {.in = {{DT_F32, 3, {2, 1000, 3080}}}},
};

const OpDef op_fp8_rows_quantise = {
    .id = OP_FP8_ROWS_QUANTISE,
    .name = "fp8_rows_quantise",
    .synopsis = "e4m3 codes of x / scale, scale = max|x| / 448 of each 128 numbers of a row",
    .num_in = 1,
    .num_out = 2,
    .min_in = 1,
    .infer = fp8_rows_quantise_infer,
    .cost = fp8_rows_quantise_cost,
    .cpu = {{DT_SET_FLOAT, fp8_rows_quantise_cpu, "reference", {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E4M3)}}}},
    .samples = fp8_rows_quantise_samples,
    .num_samples = sizeof fp8_rows_quantise_samples / sizeof fp8_rows_quantise_samples[0],
    .large = fp8_rows_quantise_large_samples,
    .num_large = sizeof fp8_rows_quantise_large_samples / sizeof fp8_rows_quantise_large_samples[0],
};
