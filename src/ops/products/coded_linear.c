/* Linear layers of a matrix that is kept as codes, over the last dim. What few rows cost is reading a byte a weight.
 *
 * int8_linear: y = scale * (x codes^T) + bias, with a scale for each row of the matrix (ops/lowbit/int8.h). Codes are exact in every float
 * format: sums are those of a product with whole numbers, and are multiplied once they are complete.
 *
 * fp8_tiles_linear: y = x w^T + bias, of e4m3 with scales of tiles, w = codes * scale rounded to x's dtype: with the bits of
 * fp8_tiles_dequantise and linear.
 *
 * With `gated` y is what swiglu makes of that, of packed gate and up, rounded to y's dtype before. With `norm` it is the product of x's
 * norm, or with `residual` of s = x + residual's, as rms_norm and add_rms_norm make it. */
#include "ops/products/coded_linear.h"

#include "ops/lowbit/fp8_tiles.h"
#include "ops/products/gemm.h"

static const AttrDef coded_linear_attrs[] = {ATTR_DTYPE(CodedLinearAttrs, dtype),      ATTR_BOOL(CodedLinearAttrs, gated, false),
                                             ATTR_BOOL(CodedLinearAttrs, gelu, false), ATTR_FLOAT(CodedLinearAttrs, eps, 1e-6),
                                             ATTR_FLOAT(CodedLinearAttrs, offset, 0),  {0}};

/* x (...,K) and codes (M,K), which are there. */
static Status infer_codes_of(const Node *node, DType dtype)
{
    TRY(infer_float(node, CODED_X, "x", 2));
    return infer_input(node, CODED_W, "codes", DT_SET(dtype), DIMS(-1, type_cols(&node->in[CODED_X]->type)));
}

/* [bias (M)], [norm (K)], [residual (...,K)] -> y (...,M) of dtype, else x's; gated: (...,M / 2), without a bias; [s (...,K), with a
 * residual]. */
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

/* scale f32 (M). */
static Status int8_linear_infer(Node *node)
{
    TRY(infer_codes_of(node, DT_I8));
    TRY(infer_input(node, CODED_SCALE, "scale", DT_SET_F32, DIMS(node->in[CODED_W]->type.dim[0])));
    return infer_result(node);
}

/* scale f32 (M / 128, K / 128), divided up. */
static Status fp8_tiles_linear_infer(Node *node)
{
    TRY(infer_codes_of(node, DT_E4M3));
    const TensorType *codes = &node->in[CODED_W]->type;
    TRY(infer_input(node, CODED_SCALE, "scale", DT_SET_F32, DIMS(div_up(codes->dim[0], FP8_TILE), div_up(codes->dim[1], FP8_TILE))));
    return infer_result(node);
}

/* Where the norm has a launch of its own, its rows. */
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

static size_t whole(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t gated_bytes(const KernelArgs *args)
{
    const TensorType *y = &args->out[ROWS_Y].type;
    return ((const CodedLinearAttrs *)args->attrs)->gated ? whole((size_t)dtype_bytes(y->dtype, 2 * type_numel(y))) : 0;
}

/* The normed rows, then gate and up, then what the product wants. */
static size_t coded_workspace(const KernelArgs *args, const Gemm *g, int num_workers)
{
    return rows_normed_bytes(args, CODED_NORM) + gated_bytes(args) + whole(gemm_workspace(g, num_workers));
}

/* g: of x and y */
static Status coded_run(const KernelArgs *args, Gemm *g, bool reference)
{
    const CodedLinearAttrs *attrs = args->attrs;
    size_t                  normed = rows_normed_bytes(args, CODED_NORM), packed = gated_bytes(args);
    if (normed) TRY(rows_make_norm(args, CODED_NORM, attrs->eps, attrs->offset));
    if (!view_wanted(&args->out[ROWS_Y])) return OK;
    if (normed) g->a.data = args->workspace;
    if (attrs->gated) g->c.data = (char *)args->workspace + normed;
    if (reference)
        gemm_reference(g);
    else
        gemm_run(g, args->pool, (char *)args->workspace + normed + packed);
    if (attrs->gated) rows_gate(&args->out[ROWS_Y], g->c.data, attrs->gelu);
    return OK;
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
        if (((const CodedLinearAttrs *)node->attrs)->gated) cost.bytes -= (double)type_bytes(&node->out[0]->type); /* half of it */ \
        return cost; \
    } \
    static size_t op##_workspace(const Node *node, int num_workers) \
    { \
        NodeArgs storage; \
        Gemm     g; \
        op##_noted(node_args(node, &storage), &g); \
        return coded_workspace(node_args(node, &storage), &g, num_workers); \
    } \
    static Status op##_tiles(const KernelArgs *args) \
    { \
        Gemm g; \
        op##_noted(args, &g); \
        return coded_run(args, &g, false); \
    } \
    static Status op##_reference(const KernelArgs *args) \
    { \
        Gemm g; \
        op##_noted(args, &g); \
        return coded_run(args, &g, true); \
    }

CODED(int8_linear)
CODED(fp8_tiles_linear)

/* Matrix units cut off what doesn't fit beside the largest product. */
#define BY_MATRIX_UNITS 5e-5

static const CodedLinearAttrs to_f32 = {.dtype = DTYPE_TO_ATTR(DT_F32), .eps = 1e-6}, normed = {.eps = 1e-6, .offset = 1},
                              gated = {.gated = true, .eps = 1e-5}, gelu = {.gated = true, .gelu = true, .eps = 1e-6};

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
    {.in = {SAMPLE(DT_F32, 3, 34, 72)}, .attrs = &gelu, .rows_alone = true},
    {.in = {SAMPLE(DT_F32, 1, 7, 40), {DT_F32, 1, {7}}, {DT_F32, 1, {40}}}, .attrs = &normed, .rows_alone = true},
    {.in = {SAMPLE(DT_F32, 1, 70, 320), [CODED_NORM] = {DT_F32, 1, {320}}, {DT_F32, 2, {1, 320}}}, .attrs = &gated, .rows_alone = true},
};

/* Shapes of real models. */
static const OpSample int8_linear_large_samples[] = {
    {.in = {SAMPLE(DT_F32, 512, 768, 512), {DT_F32, 1, {768}}}},
    {.in = {SAMPLE(DT_BF16, 1, 3072, 1024)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 1, 12800, 1152), {DT_F32, 1, {12800}}}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 1, 2050, 1152), {DT_BF16, 1, {2050}}, {DT_BF16, 1, {1152}}}, .attrs = &normed, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 1, 6146, 1024)}, .attrs = &gelu, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 1, 24576, 4096), [CODED_NORM] = {DT_BF16, 1, {4096}}, {DT_BF16, 2, {1, 4096}}},
     .attrs = &gated,
     .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 7, 4096, 1024), {DT_F32, 1, {4096}}}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 16, 1024, 3072)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 29, 6146, 528)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 64, 1024, 3072)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {SAMPLE(DT_BF16, 1300, 2048, 1024), {DT_BF16, 1, {2048}}}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
};

/* The same of tiles: `down` x `across` of them. */
#define TILES(dtype, rows, m, k, down, across) \
    {dtype, 2, {rows, k}}, {DT_E4M3, 2, {m, k}}, \
    { \
        DT_F32, 2, \
        { \
            down, across \
        } \
    }

static const OpSample fp8_tiles_linear_samples[] = {
    {.in = {TILES(DT_F32, 3, 7, 5, 1, 1), {DT_F32, 1, {7}}}},
    {.in = {{DT_F32, 3, {2, 150, 40}}, {DT_E4M3, 2, {530, 40}}, {DT_F32, 2, {5, 1}}}},
    {.in = {{DT_F32, 3, {2, 10, 1100}}, {DT_E4M3, 2, {18, 1100}}, {DT_F32, 2, {1, 9}}, {DT_F32, 1, {18}}}},
    {.in = {TILES(DT_BF16, 30, 148, 160, 2, 2), {DT_F32, 1, {148}}}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS},
    {.in = {TILES(DT_BF16, 5, 50, 80, 1, 1), {DT_BF16, 1, {50}}}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {TILES(DT_F32, 9, 150, 272, 2, 3), {DT_F32, 1, {150}}}, .rows_alone = true},
    {.in = {TILES(DT_F32, 3, 34, 72, 1, 1)}, .attrs = &gelu, .rows_alone = true},
    {.in = {TILES(DT_F32, 1, 7, 140, 1, 2), {DT_F32, 1, {7}}, {DT_F32, 1, {140}}}, .attrs = &normed, .rows_alone = true},
    {.in = {TILES(DT_F32, 1, 256, 320, 2, 3), [CODED_NORM] = {DT_F32, 1, {320}}, {DT_F32, 2, {1, 320}}},
     .attrs = &gated,
     .rows_alone = true},
};

/* Shapes of real models. */
static const OpSample fp8_tiles_linear_large_samples[] = {
    {.in = {TILES(DT_BF16, 1, 3072, 1024, 24, 8)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {TILES(DT_BF16, 1, 12800, 1152, 100, 9), {DT_F32, 1, {12800}}},
     .attrs = &to_f32,
     .tolerance = BY_MATRIX_UNITS,
     .rows_alone = true},
    {.in = {TILES(DT_BF16, 1, 2050, 1152, 17, 9), {DT_BF16, 1, {2050}}, {DT_BF16, 1, {1152}}}, .attrs = &normed, .rows_alone = true},
    {.in = {TILES(DT_BF16, 1, 24576, 4096, 192, 32), [CODED_NORM] = {DT_BF16, 1, {4096}}, {DT_BF16, 2, {1, 4096}}},
     .attrs = &gated,
     .rows_alone = true},
    {.in = {TILES(DT_BF16, 16, 1024, 3072, 8, 24)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {TILES(DT_BF16, 29, 6146, 528, 49, 5)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
    {.in = {TILES(DT_BF16, 64, 1024, 3072, 8, 24)}, .attrs = &to_f32, .tolerance = BY_MATRIX_UNITS, .rows_alone = true},
};

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
    .synopsis = "y = scale * (x codes^T) + bias; gated, with a norm or a residual: as rows_linear",
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
    .samples = int8_linear_samples,
    .num_samples = sizeof int8_linear_samples / sizeof int8_linear_samples[0],
    .large = int8_linear_large_samples,
    .num_large = sizeof int8_linear_large_samples / sizeof int8_linear_large_samples[0],
};

const OpDef op_fp8_tiles_linear = {
    .id = OP_FP8_TILES_LINEAR,
    .name = "fp8_tiles_linear",
    .synopsis = "y = x w^T + bias, of e4m3 codes times the scale of their tile of 128 rows and columns; gated, with a norm or a "
                "residual: as rows_linear",
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
    .samples = fp8_tiles_linear_samples,
    .num_samples = sizeof fp8_tiles_linear_samples / sizeof fp8_tiles_linear_samples[0],
    .large = fp8_tiles_linear_large_samples,
    .num_large = sizeof fp8_tiles_linear_large_samples / sizeof fp8_tiles_linear_large_samples[0],
};
