/* int8_quantise: encodes a matrix in int8 with a scale for each row (ops/lowbit/int8.h). */
#include "ops/infer.h"
#include "ops/lowbit/int8.h"

enum { OUT_CODES, OUT_SCALE };

/* x (N,K) -> codes i8 (N,K), scale f32 (N). */
static Status int8_quantise_infer(Node *node)
{
    TRY(infer_input(node, 0, "x", DT_SET_FLOAT, DIMS(-1, -1)));
    const TensorType *x = &node->in[0]->type;
    node->out[OUT_CODES]->type = type_as(x, DT_I8);
    node->out[OUT_SCALE]->type = type_make(DT_F32, 1, x->dim[0]);
    return OK;
}

static OpCost int8_quantise_cost(const Node *node)
{
    return cost_streaming(node, 6.0 * (double)type_numel(&node->in[0]->type));
}

static uint32_t row_most(const TensorView *x, int64_t row)
{
    float    scratch[TILE];
    int64_t  cols = x->type.dim[1];
    uint32_t most = 0;
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t count = min_i64(TILE, cols - c);
        most = most_magnitude(most, tile_load(x, row * cols + c, count, scratch), count);
    }
    return most;
}

static void encode_row(const TensorView *x, int64_t row, float scale, int8_t *codes)
{
    float   scratch[TILE];
    int64_t cols = x->type.dim[1];
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t      count = min_i64(TILE, cols - c);
        const float *part = tile_load(x, row * cols + c, count, scratch);
        for (int64_t i = 0; i < count; i++) codes[row * cols + c + i] = int8_code(part[i], scale);
    }
}

static void quantise_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[0];
    int8_t           *codes = args->out[OUT_CODES].data;
    float            *scales = args->out[OUT_SCALE].data;
    int64_t           step = rows_per_task(x->type.dim[1]), end = min_i64(x->type.dim[0], (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++) {
        float scale = int8_scale(row_most(x, row));
        if (codes) encode_row(x, row, scale, codes);
        if (scales) scales[row] = scale;
    }
}

static Status int8_quantise_cpu(const KernelArgs *args)
{
    const TensorType *x = &args->in[0].type;
    pool_run(args->pool, div_up(x->dim[0], rows_per_task(x->dim[1])), quantise_task, (void *)args);
    return OK;
}

const OpDef op_int8_quantise = {
    .id = OP_INT8_QUANTISE,
    .name = "int8_quantise",
    .synopsis = "codes = int8 codes of x / scale, scale = max |x| / 127 of each row",
    .num_in = 1,
    .num_out = 2,
    .min_in = 1,
    .infer = int8_quantise_infer,
    .cost = int8_quantise_cost,
    .cpu = {{DT_SET_FLOAT, int8_quantise_cpu, "reference", {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_I8)}}}},
    .samples = "[1,1]\n"
               "[3,50]\n"
               "[17,256]\n"
               "[5,1031]\n",
    .large = "[4096,1024]\n"
             "[1000,3080]\n",
};
