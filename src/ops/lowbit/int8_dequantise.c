/* int8_dequantise: decodes a matrix from int8 codes with a scale for each row (ops/lowbit/int8.h). Code times scale is rounded to fp32,
 * then to the matrix's dtype. Several matrices whose codes and scales follow each other are decoded as one. */
#include "ops/infer.h"

static const AttrDef int8_dequantise_attrs[] = {ATTR_DTYPE(DequantiseAttrs, dtype), DEQUANTISE_ROWS, {0}};

enum { IN_CODES, IN_SCALE };

/* codes i8 (N,K), scale f32 (N) -> w (N,K). */
static Status int8_dequantise_infer(Node *node)
{
    const DequantiseAttrs *attrs = node->attrs;
    DType                  dtype;
    TRY(infer_input(node, IN_CODES, "codes", DT_SET(DT_I8), DIMS(-1, -1)));
    const TensorType *codes = &node->in[IN_CODES]->type;
    TRY(infer_dequantised(attrs, codes->dim[0], &dtype));
    TRY(infer_input(node, IN_SCALE, "scale", DT_SET_F32, DIMS(codes->dim[0])));
    node->out[0]->type = type_as(codes, dtype);
    return OK;
}

static OpCost int8_dequantise_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->out[0]->type));
}

static void decode_row(const TensorView *w, int64_t row, float scale, const int8_t *codes)
{
    float   scratch[TILE];
    int64_t cols = w->type.dim[1];
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t at = row * cols + c, count = min_i64(TILE, cols - c);
        float  *part = tile_result(w, at, scratch);
        for (int64_t i = 0; i < count; i++) part[i] = (float)codes[at + i] * scale;
        tile_store(w, at, part, count);
    }
}

static void dequantise_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *w = &args->out[0];
    const float      *scales = args->in[IN_SCALE].data;
    int64_t           step = rows_per_task(w->type.dim[1]), end = min_i64(w->type.dim[0], (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++) decode_row(w, row, scales[row], args->in[IN_CODES].data);
}

static Status int8_dequantise_cpu(const KernelArgs *args)
{
    const TensorType *w = &args->out[0].type;
    pool_run(args->pool, div_up(w->dim[0], rows_per_task(w->dim[1])), dequantise_task, (void *)args);
    return OK;
}

const OpDef op_int8_dequantise = {
    .id = OP_INT8_DEQUANTISE,
    .name = "int8_dequantise",
    .synopsis = "w = int8 codes times the scale of their row",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .attrs_size = sizeof(DequantiseAttrs),
    .attrs = int8_dequantise_attrs,
    .infer = int8_dequantise_infer,
    .cost = int8_dequantise_cost,
    .cpu = {{DT_SET_FLOAT,
             int8_dequantise_cpu,
             "reference",
             {{.in = 1u << IN_CODES, .dtypes = DT_SET(DT_I8)}, {.in = 1u << IN_SCALE, .dtypes = DT_SET_F32}}}},
    .samples = "i8[1,1], [1]\n"
               "i8[3,50], [3] {dtype=bf16}\n"
               "i8[17,256], [17] {dtype=bf16}\n"
               "i8[5,1031], [5]\n"
               "i8[7,24], [7] {dtype=bf16, rows0=2, rows1=1, rows2=4}\n",
    .large = "i8[4096,1024], [4096] {dtype=bf16}\n"
             "i8[1000,3080], [1000]\n",
};
