/* scaled_linear: y = alpha a b^T / (a's scale * b's scale) + bias over the last dim, of operands in FP8. block_linear: the same where
 * blocks of the operands have scales, which numbers are multiplied by.
 *
 * All three products of a linear layer have this form, with both operands stored along the dim that is summed over, which is the
 * only way that GPUs up to sm_90 multiply FP8: y = x w^T; dx = dy (w^T)^T; dw = dy^T (x^T)^T. */
#include "ops/lowbit/fp8.h"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/products/gemm.h"

_Static_assert((int)FP8_TILE == (int)GEMM_BLOCK, "a product's blocks are those of the formats");

static const AttrDef scaled_linear_attrs[] = {
    ATTR_FLOAT(ScaledLinearAttrs, alpha, 1), ATTR_DTYPE(ScaledLinearAttrs, dtype), ATTR_BOOL(ScaledLinearAttrs, fast, false), {0}};

/* a codes (...,K), b codes (M,K), a_scale, b_scale f32 (4). */
static Status scaled_linear_infer(Node *node)
{
    const TensorType *a = &node->in[SCALED_A]->type;
    FAIL_IF(!(DT_SET(a->dtype) & DT_SET_FP8) || a->ndim < 2, ERR_INVALID, "a is %s of %d dims; expected e4m3 or e5m2 of at least 2",
            dtype_info(a->dtype)->name, a->ndim);
    TRY(infer_input(node, SCALED_B, "b", DT_SET_FP8, DIMS(-1, type_cols(a))));
    TRY(infer_input(node, SCALED_A_SCALE, "a_scale", DT_SET_F32, DIMS(FP8_SCALE_FLOATS)));
    TRY(infer_input(node, SCALED_B_SCALE, "b_scale", DT_SET_F32, DIMS(FP8_SCALE_FLOATS)));
    return infer_product(node, SCALED_B, SCALED_BIAS, SCALED_ACC);
}

/* a codes (...,K), b codes (M,K), a_scale f32 (K / 128, rows of a), b_scale f32 (M / 128, K / 128 or more), divided up: as
 * fp8_rows_quantise and fp8_tiles_turn make them. */
static Status block_linear_infer(Node *node)
{
    const TensorType *a = &node->in[SCALED_A]->type;
    FAIL_IF(a->dtype != DT_E4M3 || a->ndim < 2, ERR_INVALID, "a is %s of %d dims; expected e4m3 of at least 2", dtype_info(a->dtype)->name,
            a->ndim);
    int64_t across = div_up(type_cols(a), FP8_TILE);
    TRY(infer_input(node, SCALED_B, "b", DT_SET(DT_E4M3), DIMS(-1, type_cols(a))));
    TRY(infer_input(node, SCALED_A_SCALE, "a_scale", DT_SET_F32, DIMS(across, type_rows(a))));
    TRY(infer_input(node, SCALED_B_SCALE, "b_scale", DT_SET_F32, DIMS(div_up(node->in[SCALED_B]->type.dim[0], FP8_TILE), -1)));
    const TensorType *b_scale = &node->in[SCALED_B_SCALE]->type;
    FAIL_IF(b_scale->dim[1] < across, ERR_INVALID, "b_scale has %lld columns; expected at least %lld", (long long)b_scale->dim[1],
            (long long)across);
    return infer_product(node, SCALED_B, SCALED_BIAS, SCALED_ACC);
}

GEMM_COST(scaled_linear)
GEMM_KERNELS(scaled_linear)
GEMM_COST(block_linear)
GEMM_KERNELS(block_linear)

static const ScaledLinearAttrs to_bf16 = {.alpha = 1, .dtype = DTYPE_TO_ATTR(DT_BF16)},
                               fast = {.alpha = 1, .dtype = DTYPE_TO_ATTR(DT_BF16), .fast = true}, half = {.alpha = 0.5};

/* Tensor cores keep 13 or more bits of what they sum up; a bf16 y has 8. */
#define ROUNDED 5e-3

#define SCALE \
    { \
        DT_F32, 1, \
        { \
            FP8_SCALE_FLOATS \
        } \
    }

static const OpSample scaled_linear_samples[] = {
    {.in = {{DT_E4M3, 2, {3, 5}}, {DT_E4M3, 2, {7, 5}}, SCALE, SCALE, {DT_F32, 1, {7}}}},
    {.in = {{DT_E5M2, 3, {2, 150, 40}}, {DT_E4M3, 2, {530, 40}}, SCALE, SCALE}, .attrs = &to_bf16, .tolerance = ROUNDED},
    {.in = {{DT_E4M3, 2, {20, 1100}}, {DT_E5M2, 2, {18, 1100}}, SCALE, SCALE}, .attrs = &half},
    {.in = {{DT_E4M3, 3, {2, 20, 64}}, {DT_E4M3, 2, {48, 64}}, SCALE, SCALE, {DT_BF16, 1, {48}}}, .attrs = &fast, .tolerance = ROUNDED},
    {.in = {{DT_E5M2, 2, {48, 320}}, {DT_E4M3, 2, {80, 320}}, SCALE, SCALE}, .tolerance = ROUNDED},
    {.in = {{DT_E4M3, 2, {7, 64}}, {DT_E4M3, 2, {48, 64}}, SCALE, SCALE}, .attrs = &to_bf16, .tolerance = ROUNDED}, /* rows of decoding */
};

/* Shapes of real models: y, dx and dw. */
static const OpSample scaled_linear_large_samples[] = {
    {.in = {{DT_E4M3, 3, {2, 1024, 1024}}, {DT_E4M3, 2, {3072, 1024}}, SCALE, SCALE}, .attrs = &fast, .tolerance = ROUNDED},
    {.in = {{DT_E5M2, 3, {2, 1024, 3072}}, {DT_E4M3, 2, {1024, 3072}}, SCALE, SCALE}, .attrs = &to_bf16, .tolerance = ROUNDED},
    {.in = {{DT_E5M2, 2, {3072, 2048}}, {DT_E4M3, 2, {1024, 2048}}, SCALE, SCALE}, .tolerance = ROUNDED},
};

const OpDef op_scaled_linear = {
    .id = OP_SCALED_LINEAR,
    .name = "scaled_linear",
    .synopsis = "y = alpha a b^T / (a's scale times b's) + bias",
    .num_in = 6,
    .num_out = 1,
    .min_in = 4,
    .alias = {{.out = 0, .in = SCALED_ACC, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(ScaledLinearAttrs),
    .attrs = scaled_linear_attrs,
    .infer = scaled_linear_infer,
    .cost = scaled_linear_cost,
    .workspace = scaled_linear_workspace,
    .cpu = {{DT_SET_FLOAT, scaled_linear_tiles, "tiles", {{.in = 1u << SCALED_A | 1u << SCALED_B, .dtypes = DT_SET_FP8}}},
            {DT_SET_FLOAT, scaled_linear_reference, "reference", {{.in = 1u << SCALED_A | 1u << SCALED_B, .dtypes = DT_SET_FP8}}}},
    .holds = {[SCALED_A_SCALE] = HOLDS_SCALE, [SCALED_B_SCALE] = HOLDS_SCALE},
    .samples = scaled_linear_samples,
    .num_samples = sizeof scaled_linear_samples / sizeof scaled_linear_samples[0],
    .large = scaled_linear_large_samples,
    .num_large = sizeof scaled_linear_large_samples / sizeof scaled_linear_large_samples[0],
};

#define A_SCALE(across, rows) \
    { \
        DT_F32, 2, \
        { \
            across, rows \
        } \
    }
#define B_SCALE(down, across) \
    { \
        DT_F32, 2, \
        { \
            down, across \
        } \
    }

static const OpSample block_linear_samples[] = {
    {.in = {{DT_E4M3, 2, {3, 5}}, {DT_E4M3, 2, {7, 5}}, A_SCALE(1, 3), B_SCALE(1, 1), {DT_F32, 1, {7}}}},
    {.in = {{DT_E4M3, 3, {2, 70, 400}}, {DT_E4M3, 2, {260, 400}}, A_SCALE(4, 140), B_SCALE(3, 4)}, .attrs = &to_bf16, .tolerance = ROUNDED},
    {.in = {{DT_E4M3, 2, {20, 1100}}, {DT_E4M3, 2, {18, 1100}}, A_SCALE(9, 20), B_SCALE(1, 12)}, .attrs = &half},
    {.in = {{DT_E4M3, 3, {2, 20, 128}}, {DT_E4M3, 2, {144, 128}}, A_SCALE(1, 40), B_SCALE(2, 4), {DT_BF16, 1, {144}}},
     .attrs = &to_bf16,
     .tolerance = ROUNDED},
    {.in = {{DT_E4M3, 2, {48, 272}}, {DT_E4M3, 2, {80, 272}}, A_SCALE(3, 48), B_SCALE(1, 4)}, .tolerance = ROUNDED},
};

/* Shapes of real models: y and dx. */
static const OpSample block_linear_large_samples[] = {
    {.in = {{DT_E4M3, 3, {2, 1024, 1024}}, {DT_E4M3, 2, {3072, 1024}}, A_SCALE(8, 2048), B_SCALE(24, 8)},
     .attrs = &to_bf16,
     .tolerance = ROUNDED},
    {.in = {{DT_E4M3, 3, {2, 1024, 3072}}, {DT_E4M3, 2, {1024, 3072}}, A_SCALE(24, 2048), B_SCALE(8, 24)},
     .attrs = &to_bf16,
     .tolerance = ROUNDED},
};

const OpDef op_block_linear = {
    .id = OP_BLOCK_LINEAR,
    .name = "block_linear",
    .synopsis = "y = alpha a b^T + bias, of codes times the scales of their blocks: 1 x 128 of a, 128 x 128 of b",
    .num_in = 6,
    .num_out = 1,
    .min_in = 4,
    .alias = {{.out = 0, .in = SCALED_ACC, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(ScaledLinearAttrs),
    .attrs = scaled_linear_attrs,
    .infer = block_linear_infer,
    .cost = block_linear_cost,
    .workspace = block_linear_workspace,
    .cpu = {{DT_SET_FLOAT, block_linear_tiles, "tiles", {{.in = 1u << SCALED_A | 1u << SCALED_B, .dtypes = DT_SET(DT_E4M3)}}},
            {DT_SET_FLOAT, block_linear_reference, "reference", {{.in = 1u << SCALED_A | 1u << SCALED_B, .dtypes = DT_SET(DT_E4M3)}}}},
    .samples = block_linear_samples,
    .num_samples = sizeof block_linear_samples / sizeof block_linear_samples[0],
    .large = block_linear_large_samples,
    .num_large = sizeof block_linear_large_samples / sizeof block_linear_large_samples[0],
};
