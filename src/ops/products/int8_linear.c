/* int8_linear: y = scale * (x codes^T) + bias over the last dim, of a matrix in int8 with a scale for each row (ops/lowbit/int8.h). Codes
 * are exact in every float format: sums are those of a product with a matrix of whole numbers, and are multiplied once they are complete.
 * What few rows cost is reading a byte a weight. */
#include "ops/products/int8_linear.h"

#include "ops/products/gemm.h"

static const AttrDef int8_linear_attrs[] = {ATTR_DTYPE(LinearAttrs, dtype), {0}};

/* x (...,K), codes i8 (M,K), scale f32 (M), [bias (M)] -> y (...,M) of dtype, else x's. */
static Status int8_linear_infer(Node *node)
{
    TRY(infer_float(node, INT8_X, "x", 2));
    const TensorType *x = &node->in[INT8_X]->type;
    TRY(infer_input(node, INT8_CODES, "codes", DT_SET(DT_I8), DIMS(-1, type_cols(x))));
    int64_t rows = node->in[INT8_CODES]->type.dim[0];
    TRY(infer_input(node, INT8_SCALE, "scale", DT_SET_F32, DIMS(rows)));
    if (node->in[INT8_BIAS]) TRY(infer_input(node, INT8_BIAS, "bias", DT_SET_FLOAT, DIMS(rows)));
    const LinearAttrs *attrs = node->attrs;
    node->out[0]->type = *x;
    if (attrs->dtype) node->out[0]->type.dtype = ATTR_TO_DTYPE(attrs->dtype);
    FAIL_IF(!(DT_SET(node->out[0]->type.dtype) & DT_SET_FLOAT), ERR_INVALID, "dtype is %s; expected f32 or bf16",
            dtype_info(node->out[0]->type.dtype)->name);
    node->out[0]->type.dim[x->ndim - 1] = rows;
    return OK;
}

static size_t int8_linear_gpu_workspace(const Node *node, int sm)
{
    const TensorType *x = &node->in[INT8_X]->type, *codes = &node->in[INT8_CODES]->type;
    return sm >= 80 && int8_rows_are_few(x, codes) ? 0 : int8_scratch(x, codes).bytes;
}

GEMM_COST(int8_linear)
GEMM_KERNELS(int8_linear)

/* Matrix units cut off what doesn't fit beside the largest product. */
#define BY_MATRIX_UNITS 5e-5

static const LinearAttrs to_f32 = {.dtype = DTYPE_TO_ATTR(DT_F32)};

/* x of `rows` rows and k columns, codes of m rows. */
#define SAMPLE(dtype, rows, m, k) \
    {dtype, 2, {rows, k}}, {DT_I8, 2, {m, k}}, \
    { \
        DT_F32, 1, \
        { \
            m \
        } \
    }

static const OpSample int8_linear_samples[] = {
    {.in = {SAMPLE(DT_F32, 3, 7, 5), {DT_F32, 1, {7}}}},
    {.in = {{DT_F32, 3, {2, 150, 40}}, {DT_I8, 2, {530, 40}}, {DT_F32, 1, {530}}}},
    {.in = {{DT_F32, 3, {2, 10, 1100}}, {DT_I8, 2, {18, 1100}}, {DT_F32, 1, {18}}, {DT_F32, 1, {18}}}},
    {.in = {SAMPLE(DT_BF16, 30, 48, 64), {DT_F32, 1, {48}}}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS},
    {.in = {SAMPLE(DT_BF16, 5, 50, 80), {DT_BF16, 1, {50}}}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_F32, 9, 50, 72), {DT_F32, 1, {50}}}, .rows_alone = true},
};

/* Shapes of real models. */
static const OpSample int8_linear_large_samples[] = {
    {.in = {SAMPLE(DT_F32, 512, 768, 512), {DT_F32, 1, {768}}}},
    {.in = {SAMPLE(DT_BF16, 1, 3072, 1024)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 7, 4096, 1024), {DT_F32, 1, {4096}}}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 16, 1024, 3072)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 29, 6146, 528)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 64, 1024, 3072)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 1300, 2048, 1024), {DT_BF16, 1, {2048}}}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
};

#define CODES \
    { \
        {.in = 1u << INT8_CODES, .dtypes = DT_SET(DT_I8)}, \
        { \
            .in = 1u << INT8_SCALE, .dtypes = DT_SET_F32 \
        } \
    }

const OpDef op_int8_linear = {
    .id = OP_INT8_LINEAR,
    .name = "int8_linear",
    .synopsis = "y = scale * (x codes^T) + bias",
    .num_in = 4,
    .num_out = 1,
    .min_in = 3,
    .attrs_size = sizeof(LinearAttrs),
    .attrs = int8_linear_attrs,
    .by_row = 1u << INT8_X,
    .infer = int8_linear_infer,
    .cost = int8_linear_cost,
    .workspace = int8_linear_workspace,
    .gpu_workspace = int8_linear_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, int8_linear_tiles, "tiles", CODES}, {DT_SET_FLOAT, int8_linear_reference, "reference", CODES}},
    .samples = int8_linear_samples,
    .num_samples = sizeof int8_linear_samples / sizeof int8_linear_samples[0],
    .large = int8_linear_large_samples,
    .num_large = sizeof int8_linear_large_samples / sizeof int8_linear_large_samples[0],
};
