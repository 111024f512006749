/* Linear layers of a matrix that is kept as codes, over the last dim. With few rows the time is that of reading one byte for each weight.
 *
 * int8_linear: y = scale * (x codes^T) + bias, with a scale for each row of the matrix (ops/lowbit/int8.h). Codes are exact in every float
 * format: x is multiplied by whole numbers, and complete sums are multiplied by the scale.
 *
 * fp8_tiles_linear: y = x w^T + bias, of e4m3 codes with scales of tiles. w = codes * scale is rounded to x's dtype: the bits of
 * fp8_tiles_dequantise followed by linear.
 *
 * With `gated` the product is packed gate and up, rounded to y's dtype, and y is what swiglu makes of it. With `norm` the product reads the
 * norm of x, or with `residual` the norm of s = x + residual, as rms_norm and add_rms_norm compute it. */
#include "ops/products/coded_linear.h"

#include "ops/lowbit/fp8_tiles.h"
#include "ops/products/gemm.h"

static const AttrDef coded_linear_attrs[] = {ATTR_DTYPE(CodedLinearAttrs, dtype),      ATTR_BOOL(CodedLinearAttrs, gated, false),
                                             ATTR_BOOL(CodedLinearAttrs, gelu, false), ATTR_FLOAT(CodedLinearAttrs, eps, 1e-6),
                                             ATTR_FLOAT(CodedLinearAttrs, offset, 0),  {0}};

/* Checks x (...,K) and codes (M,K), which are both required. */
static Status infer_codes_of(const Node *node, DType dtype)
{
    TRY(infer_float(node, CODED_X, "x", 2));
    return infer_input(node, CODED_W, "codes", DT_SET(dtype), DIMS(-1, type_cols(&node->in[CODED_X]->type)));
}

/* Inputs and outputs of both ops, besides x, codes and scales: [bias (M)], [norm (K)], [residual (...,K)] -> y (...,M) of attribute dtype,
 * else x's; gated: (...,M / 2), without a bias; [s (...,K), with a residual]. */
static Status infer_result(Node *node)
{
    const CodedLinearAttrs *attrs = node->attrs;
    const TensorType       *x = &node->in[CODED_X]->type;
    int64_t                 rows = node->in[CODED_W]->type.dim[0];
    if (node->in[CODED_BIAS]) TRY(infer_input(node, CODED_BIAS, "bias", DT_SET_FLOAT, DIMS(rows)));
    FAIL_IF(attrs->gated && (rows % 2 || node->in[CODED_BIAS]), ERR_INVALID,
            "gated: codes have %lld rows, %s bias; expected an even number and none", (long long)rows,
            node->in[CODED_BIAS] ? "there is a" : "no");
    node->out[0]->type = *x;
    if (attrs->dtype) node->out[0]->type.dtype = ATTR_TO_DTYPE(attrs->dtype);
    FAIL_IF(!(DT_SET(node->out[0]->type.dtype) & DT_SET_FLOAT), ERR_INVALID, "dtype is %s; expected f32 or bf16",
            dtype_info(node->out[0]->type.dtype)->name);
    node->out[0]->type.dim[x->ndim - 1] = attrs->gated ? rows / 2 : rows;
    return rows_infer_norm(node, CODED_NORM);
}

/* x, codes, scale f32 (M), then as in infer_result. */
static Status int8_linear_infer(Node *node)
{
    TRY(infer_codes_of(node, DT_I8));
    TRY(infer_input(node, CODED_SCALE, "scale", DT_SET_F32, DIMS(node->in[CODED_W]->type.dim[0])));
    return infer_result(node);
}

/* x, codes, scale f32 (M / 128, K / 128; quotients rounded up), then as in infer_result. */
static Status fp8_tiles_linear_infer(Node *node)
{
    TRY(infer_codes_of(node, DT_E4M3));
    const TensorType *codes = &node->in[CODED_W]->type;
    TRY(infer_input(node, CODED_SCALE, "scale", DT_SET_F32, DIMS(div_up(codes->dim[0], FP8_TILE), div_up(codes->dim[1], FP8_TILE))));
    return infer_result(node);
}

/* Bytes of the normed rows, if the norm has a launch of its own. */
static size_t int8_linear_gpu_workspace(const Node *node, int sm)
{
    NodeArgs          storage;
    const KernelArgs *args = node_args(node, &storage);
    const TensorType *x = &node->in[CODED_X]->type, *codes = &node->in[CODED_W]->type;
    if (coded_is_fused(args)) return rows_normed_bytes(args, CODED_NORM);
    return sm >= 80 && coded_rows_are_few(x, codes) ? 0 : int8_scratch(x, codes).bytes;
}

static size_t fp8_tiles_linear_gpu_workspace(const Node *node, int sm)
{
    NodeArgs storage;
    (void)sm;
    return rows_normed_bytes(node_args(node, &storage), CODED_NORM);
}

/* ---- CPU ---- */

static RowsFused coded_fused(const KernelArgs *args)
{
    const CodedLinearAttrs *attrs = args->attrs;
    return (RowsFused){CODED_NORM, attrs->gated, attrs->gelu, attrs->eps, attrs->offset};
}

#define CODED(op) \
    static int op##_noted(const KernelArgs *args, Gemm *g) \
    { \
        int count = op##_products(args, g); \
        if (((const CodedLinearAttrs *)args->attrs)->gated) g->c.stride = g->n; \
        return products_note(args, g, count); \
    } \
    static OpCost op##_cost(const Node *node) \
    { \
        NodeArgs storage; \
        Gemm     g; \
        OpCost   cost = gemms_cost(&g, op##_noted(node_args(node, &storage), &g)); \
        if (((const CodedLinearAttrs *)node->attrs)->gated) cost.bytes -= (double)type_bytes(&node->out[0]->type); /* only y is stored */ \
        return cost; \
    } \
    static size_t op##_workspace(const Node *node, int num_workers) \
    { \
        NodeArgs  storage; \
        Gemm      g; \
        RowsFused fused = coded_fused(node_args(node, &storage)); \
        op##_noted(node_args(node, &storage), &g); \
        return rows_fused_workspace(node_args(node, &storage), &fused, &g, num_workers); \
    } \
    static Status op##_tiles(const KernelArgs *args) \
    { \
        Gemm      g; \
        RowsFused fused = coded_fused(args); \
        op##_noted(args, &g); \
        return rows_fused_run(args, &fused, &g, false); \
    } \
    static Status op##_reference(const KernelArgs *args) \
    { \
        Gemm      g; \
        RowsFused fused = coded_fused(args); \
        op##_noted(args, &g); \
        return rows_fused_run(args, &fused, &g, true); \
    }

CODED(int8_linear)
CODED(fp8_tiles_linear)

#define CODES(dtype) \
    { \
        {.in = 1u << CODED_W, .dtypes = DT_SET(dtype)}, \
        { \
            .in = 1u << CODED_SCALE, .dtypes = DT_SET_F32 \
        } \
    }

const OpDef op_int8_linear = {
    .id = OP_INT8_LINEAR,
    .name = "int8_linear",
    .synopsis = "y = scale * (x codes^T) + bias; gated, norm and residual as in rows_linear",
    .num_in = 6,
    .num_out = 2,
    .min_in = 3,
    .attrs_size = sizeof(CodedLinearAttrs),
    .attrs = coded_linear_attrs,
    .by_row = 1u << CODED_X | 1u << CODED_RESIDUAL,
    .infer = int8_linear_infer,
    .cost = int8_linear_cost,
    .workspace = int8_linear_workspace,
    .gpu_workspace = int8_linear_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, int8_linear_tiles, "tiles", CODES(DT_I8)}, {DT_SET_FLOAT, int8_linear_reference, "reference", CODES(DT_I8)}},
    /* Tolerance: matrix units cut off bits that don't fit beside the largest product. */
    .samples = "[3,5], i8[7,5], [7], [7]\n"
               "[2,150,40], i8[530,40], [530]\n"
               "[2,10,1100], i8[18,1100], [18], [18]\n"
               "bf16[30,64], i8[48,64], [48], [48] {dtype=f32} tolerance=5e-5\n"
               "bf16[5,80], i8[50,80], [50], bf16[50] {dtype=f32} rows_alone tolerance=5e-5\n"
               "[9,72], i8[50,72], [50], [50] rows_alone\n"
               "[3,72], i8[34,72], [34] {gated=true, gelu=true} rows_alone\n"
               "[1,40], i8[7,40], [7], [7], [40] {offset=1} rows_alone\n"
               "[1,320], i8[70,320], [70], _, [320], [1,320] {gated=true, eps=1e-05} rows_alone\n",
    .large = "[512,512], i8[768,512], [768], [768]\n"
             "bf16[1,1024], i8[3072,1024], [3072] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[1,1152], i8[12800,1152], [12800], [12800] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[1,1152], i8[2050,1152], [2050], bf16[2050], bf16[1152] {offset=1} rows_alone\n"
             "bf16[1,1024], i8[6146,1024], [6146] {gated=true, gelu=true} rows_alone\n"
             "bf16[1,4096], i8[24576,4096], [24576], _, bf16[4096], bf16[1,4096] {gated=true, eps=1e-05} rows_alone\n"
             "bf16[7,1024], i8[4096,1024], [4096], [4096] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[16,3072], i8[1024,3072], [1024] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[29,528], i8[6146,528], [6146] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[64,3072], i8[1024,3072], [1024] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[1300,1024], i8[2048,1024], [2048], bf16[2048] {dtype=f32} rows_alone tolerance=5e-5\n",
};

const OpDef op_fp8_tiles_linear = {
    .id = OP_FP8_TILES_LINEAR,
    .name = "fp8_tiles_linear",
    .synopsis = "y = x w^T + bias, where w is e4m3 codes times the scale of their tile of 128 rows and columns; gated, norm and "
                "residual as in rows_linear",
    .num_in = 6,
    .num_out = 2,
    .min_in = 3,
    .attrs_size = sizeof(CodedLinearAttrs),
    .attrs = coded_linear_attrs,
    .by_row = 1u << CODED_X | 1u << CODED_RESIDUAL,
    .infer = fp8_tiles_linear_infer,
    .cost = fp8_tiles_linear_cost,
    .workspace = fp8_tiles_linear_workspace,
    .gpu_workspace = fp8_tiles_linear_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, fp8_tiles_linear_tiles, "tiles", CODES(DT_E4M3)},
            {DT_SET_FLOAT, fp8_tiles_linear_reference, "reference", CODES(DT_E4M3)}},
    /* Tolerance: matrix units cut off bits that don't fit beside the largest product. */
    .samples = "[3,5], e4m3[7,5], [1,1], [7]\n"
               "[2,150,40], e4m3[530,40], [5,1]\n"
               "[2,10,1100], e4m3[18,1100], [1,9], [18]\n"
               "bf16[30,160], e4m3[148,160], [2,2], [148] {dtype=f32} tolerance=5e-5\n"
               "bf16[5,80], e4m3[50,80], [1,1], bf16[50] {dtype=f32} rows_alone tolerance=5e-5\n"
               "[9,272], e4m3[150,272], [2,3], [150] rows_alone\n"
               "[3,72], e4m3[34,72], [1,1] {gated=true, gelu=true} rows_alone\n"
               "[1,140], e4m3[7,140], [1,2], [7], [140] {offset=1} rows_alone\n"
               "[1,320], e4m3[256,320], [2,3], _, [320], [1,320] {gated=true, eps=1e-05} rows_alone\n",
    .large = "bf16[1,1024], e4m3[3072,1024], [24,8] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[1,1152], e4m3[12800,1152], [100,9], [12800] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[1,1152], e4m3[2050,1152], [17,9], bf16[2050], bf16[1152] {offset=1} rows_alone\n"
             "bf16[1,4096], e4m3[24576,4096], [192,32], _, bf16[4096], bf16[1,4096] {gated=true, eps=1e-05} rows_alone\n"
             "bf16[16,3072], e4m3[1024,3072], [8,24] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[29,528], e4m3[6146,528], [49,5] {dtype=f32} rows_alone tolerance=5e-5\n"
             "bf16[64,3072], e4m3[1024,3072], [8,24] {dtype=f32} rows_alone tolerance=5e-5\n",
};
