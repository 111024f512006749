/* scaled_linear: y = alpha a b^T / (a's scale * b's scale) + bias over the last dim, of operands in FP8. block_linear: the same with scales
 * of blocks, by which elements are multiplied.
 *
 * All three products of a linear layer have this form: y = x w^T; dx = dy (w^T)^T; dw = dy^T (x^T)^T. Both operands are stored along the
 * dim that is summed over: GPUs up to sm_90 multiply FP8 in no other layout. */
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

/* a codes (...,K), b codes (M,K), a_scale f32 (K / 128, rows of a), b_scale f32 (M / 128, K / 128 or more), quotients rounded up: as
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

const OpDef op_scaled_linear = {
    .id = OP_SCALED_LINEAR,
    .name = "scaled_linear",
    .synopsis = "y = alpha a b^T / (scale of a * scale of b) + bias",
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
    /* Tolerance: tensor cores keep 13 or more bits of what they sum up; a bf16 y has 8. */
    .samples = "e4m3[3,5], e4m3[7,5], [4], [4], [7]\n"
               "e5m2[2,150,40], e4m3[530,40], [4], [4] {dtype=bf16} tolerance=0.005\n"
               "e4m3[20,1100], e5m2[18,1100], [4], [4] {alpha=0.5}\n"
               "e4m3[2,20,64], e4m3[48,64], [4], [4], bf16[48] {dtype=bf16, fast=true} tolerance=0.005\n"
               "e5m2[48,320], e4m3[80,320], [4], [4] tolerance=0.005\n"
               "e4m3[7,64], e4m3[48,64], [4], [4] {dtype=bf16} tolerance=0.005\n",
    /* shapes of y, dx and dw */
    .large = "e4m3[2,1024,1024], e4m3[3072,1024], [4], [4] {dtype=bf16, fast=true} tolerance=0.005\n"
             "e5m2[2,1024,3072], e4m3[1024,3072], [4], [4] {dtype=bf16} tolerance=0.005\n"
             "e5m2[3072,2048], e4m3[1024,2048], [4], [4] tolerance=0.005\n",
};

const OpDef op_block_linear = {
    .id = OP_BLOCK_LINEAR,
    .name = "block_linear",
    .synopsis = "y = alpha a b^T + bias; an operand is codes times the scales of their blocks, 1 x 128 in a, 128 x 128 in b",
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
    .samples = "e4m3[3,5], e4m3[7,5], [1,3], [1,1], [7]\n"
               "e4m3[2,70,400], e4m3[260,400], [4,140], [3,4] {dtype=bf16} tolerance=0.005\n"
               "e4m3[20,1100], e4m3[18,1100], [9,20], [1,12] {alpha=0.5}\n"
               "e4m3[2,20,128], e4m3[144,128], [1,40], [2,4], bf16[144] {dtype=bf16} tolerance=0.005\n"
               "e4m3[48,272], e4m3[80,272], [3,48], [1,4] tolerance=0.005\n",
    /* shapes of y and dx */
    .large = "e4m3[2,1024,1024], e4m3[3072,1024], [8,2048], [24,8] {dtype=bf16} tolerance=0.005\n"
             "e4m3[2,1024,3072], e4m3[1024,3072], [24,2048], [8,24] {dtype=bf16} tolerance=0.005\n",
};
