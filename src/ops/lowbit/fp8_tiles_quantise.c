/* fp8_tiles_quantise: encodes a weight in e4m3 with a scale for each tile of 128 x 128 (ops/lowbit/fp8_tiles.h). */
#include "ops/infer.h"
#include "ops/lowbit/fp8_tiles.h"

enum { OUT_CODES, OUT_SCALE };

/* x (N,K) -> codes e4m3 (N,K), scale f32 (N / 128, K / 128), quotients rounded up. */
static Status fp8_tiles_quantise_infer(Node *node)
{
    TRY(infer_input(node, 0, "x", DT_SET_FLOAT, DIMS(-1, -1)));
    const TensorType *x = &node->in[0]->type;
    node->out[OUT_CODES]->type = type_as(x, DT_E4M3);
    node->out[OUT_SCALE]->type = type_make(DT_F32, 2, div_up(x->dim[0], FP8_TILE), div_up(x->dim[1], FP8_TILE));
    return OK;
}

static OpCost fp8_tiles_quantise_cost(const Node *node)
{
    return cost_streaming(node, 20.0 * (double)type_numel(&node->in[0]->type));
}

static void encode_row(const TensorView *x, int64_t at, int64_t count, float scale, uint8_t *codes)
{
    float        scratch[FP8_TILE];
    const float *row = tile_load(x, at, count, scratch);
    for (int64_t i = 0; i < count; i++) codes[at + i] = (uint8_t)fp8_tile_code(row[i], scale);
}

static void quantise_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[0];
    uint8_t          *codes = args->out[OUT_CODES].data;
    float            *scales = args->out[OUT_SCALE].data;
    int64_t           rows = x->type.dim[0], cols = x->type.dim[1], across = div_up(cols, FP8_TILE);
    int64_t           first = task / across * FP8_TILE, end = min_i64(rows, first + FP8_TILE), c = task % across * FP8_TILE;
    int64_t           count = min_i64(FP8_TILE, cols - c);
    uint32_t          most = 0;
    float             scratch[FP8_TILE];
    (void)worker;
    for (int64_t row = first; row < end; row++) most = most_magnitude(most, tile_load(x, row * cols + c, count, scratch), count);
    float scale = fp8_tile_scale(most);
    for (int64_t row = first; row < end && codes; row++) encode_row(x, row * cols + c, count, scale, codes);
    if (scales) scales[task] = scale;
}

static Status fp8_tiles_quantise_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[0].type;
    pool_run(args->pool, div_up(x->dim[0], FP8_TILE) * div_up(x->dim[1], FP8_TILE), quantise_task, (void *)args);
    return OK;
}

const OpDef op_fp8_tiles_quantise = {
    .id = OP_FP8_TILES_QUANTISE,
    .name = "fp8_tiles_quantise",
    .synopsis = "codes = e4m3 codes of x / scale, scale = max |x| / 448 of each tile of 128 rows and columns",
    .num_in = 1,
    .num_out = 2,
    .min_in = 1,
    .infer = fp8_tiles_quantise_infer,
    .cost = fp8_tiles_quantise_cost,
    .cpu = {{DT_SET_FLOAT, fp8_tiles_quantise_cpu, "reference", {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E4M3)}}}},
    .samples = "[1,1]\n"
               "[3,50]\n"
               "[128,256]\n"
               "[131,257]\n",
    .large = "[4096,1024]\n"
             "[1000,3080]\n",
};
