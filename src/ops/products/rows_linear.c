/* rows_linear: what decoding's linear layers are made of. y = x w^T + bias of few rows, as linear; or with `gated` what swiglu makes of
 * that, of packed gate and up. Sums are rounded to y's dtype before they are gated, as linear stores them. With `norm` it is the product of
 * x's norm, or with `residual` of s = x + residual's, as rms_norm and add_rms_norm make it.
 *
 * With `parts` each sum is as many sums of equal parts of k, added up as (0 + 1) + (2 + 3), which a GPU
 * makes beside each other; the CPU makes each sum whole. */
#include "ops/products/rows_linear.h"

#include "ops/products/gemm.h"

static const AttrDef rows_linear_attrs[] = {ATTR_INT(RowsLinearAttrs, parts, 1),     ATTR_BOOL(RowsLinearAttrs, gated, false),
                                            ATTR_BOOL(RowsLinearAttrs, gelu, false), ATTR_FLOAT(RowsLinearAttrs, eps, 1e-6),
                                            ATTR_FLOAT(RowsLinearAttrs, offset, 0),  {0}};

/* x (...,K), w (M,K), [bias (M)], [norm (K)], [residual (...,K)] -> y (...,M) of x's dtype; gated: (...,M / 2), without a bias;
 * [s (...,K), with a residual]. */
static Status rows_linear_infer(Node *node)
{
    const RowsLinearAttrs *attrs = node->attrs;
    TRY(infer_float(node, ROWS_X, "x", 2));
    const TensorType *x = &node->in[ROWS_X]->type;
    int64_t           k = type_cols(x);
    TRY(infer_input(node, ROWS_W, "w", DT_SET_DECODE, DIMS(-1, k)));
    int64_t rows = node->in[ROWS_W]->type.dim[0];
    if (node->in[ROWS_BIAS]) TRY(infer_input(node, ROWS_BIAS, "bias", DT_SET_DECODE, DIMS(rows)));
    FAIL_IF(!rows_parts_fit(k, attrs->parts), ERR_INVALID, "attribute parts is %lld, expected 1, or 2 or 4 of whole %ds of %lld columns",
            (long long)attrs->parts, ROWS_WHOLE, (long long)k);
    FAIL_IF(attrs->gated && (rows % 2 || node->in[ROWS_BIAS] || attrs->parts > 1), ERR_INVALID,
            "gated: w has %lld rows, parts is %lld, %s bias; expected an even number, 1 and none", (long long)rows, (long long)attrs->parts,
            node->in[ROWS_BIAS] ? "there is a" : "no");
    node->out[0]->type = *x;
    node->out[0]->type.dim[x->ndim - 1] = attrs->gated ? rows / 2 : rows;
    return rows_infer_norm(node, ROWS_NORM);
}

static OpCost rows_linear_cost(const Node *node)
{
    NodeArgs storage;
    Gemm     g;
    rows_linear_products(node_args(node, &storage), &g);
    OpCost cost = gemms_cost(&g, 1);
    if (((const RowsLinearAttrs *)node->attrs)->gated) cost.bytes -= (double)type_bytes(&node->out[0]->type); /* half of the product */
    return cost;
}

/* ---- CPU ---- */

static size_t product_bytes(const Node *node, int num_workers)
{
    NodeArgs storage;
    Gemm     g;
    products_note(node_args(node, &storage), &g, rows_linear_products(node_args(node, &storage), &g));
    return (gemm_workspace(&g, num_workers) + 63) / 64 * 64;
}

static size_t gated_bytes(const KernelArgs *args)
{
    const TensorType *y = &args->out[0].type;
    return ((const RowsLinearAttrs *)args->attrs)->gated ? (size_t)dtype_bytes(y->dtype, 2 * type_numel(y)) : 0;
}

/* The normed rows, then gate and up, then what the product wants. */
static size_t rows_linear_workspace(const Node *node, int num_workers)
{
    NodeArgs          storage;
    const KernelArgs *args = node_args(node, &storage);
    return rows_normed_bytes(args, ROWS_NORM) + (gated_bytes(args) + 63) / 64 * 64 + product_bytes(node, num_workers);
}

/* Where the norm has a launch of its own. */
static size_t rows_linear_gpu_workspace(const Node *node, int sm)
{
    NodeArgs storage;
    (void)sm;
    return rows_normed_bytes(node_args(node, &storage), ROWS_NORM);
}

static Status rows_linear_run(const KernelArgs *args, bool reference)
{
    const RowsLinearAttrs *attrs = args->attrs;
    const TensorView      *y = &args->out[0];
    size_t                 normed = rows_normed_bytes(args, ROWS_NORM), packed = (gated_bytes(args) + 63) / 64 * 64;
    Gemm                   g;
    if (normed) TRY(rows_make_norm(args, ROWS_NORM, attrs->eps, attrs->offset));
    if (!view_wanted(y)) return OK;
    products_note(args, &g, rows_linear_products(args, &g));
    if (normed) g.a.data = args->workspace;
    if (attrs->gated) g.c.data = (char *)args->workspace + normed;
    if (reference)
        gemm_reference(&g);
    else
        gemm_run(&g, args->pool, (char *)args->workspace + normed + packed);
    if (attrs->gated) rows_gate(y, g.c.data, attrs->gelu);
    return OK;
}

static Status rows_linear_tiles(const KernelArgs *args)
{
    return rows_linear_run(args, false);
}

static Status rows_linear_reference(const KernelArgs *args)
{
    return rows_linear_run(args, true);
}

static const RowsLinearAttrs of_two = {.parts = 2}, of_four = {.parts = 4}, gated = {.parts = 1, .gated = true},
                             gelu = {.parts = 1, .gated = true, .gelu = true}, normed = {.parts = 1, .eps = 1e-6, .offset = 1},
                             normed_gated = {.parts = 1, .gated = true, .eps = 1e-5};

static const OpSample rows_linear_samples[] = {
    {.in = {{DT_F32, 2, {3, 5}}, {DT_F32, 2, {7, 5}}, {DT_F32, 1, {7}}}, .rows_alone = true},
    {.in = {{DT_F32, 3, {5, 1, 128}}, {DT_F32, 2, {50, 128}}}, .attrs = &of_two, .rows_alone = true},
    {.in = {{DT_F32, 2, {9, 256}}, {DT_F32, 2, {18, 256}}, {DT_F32, 1, {18}}}, .attrs = &of_four, .rows_alone = true},
    {.in = {{DT_F32, 3, {4, 1, 72}}, {DT_F32, 2, {34, 72}}}, .attrs = &gated, .rows_alone = true},
    {.in = {{DT_F32, 2, {3, 64}}, {DT_F32, 2, {70, 64}}}, .attrs = &gelu, .rows_alone = true},
    {.in = {{DT_F32, 2, {1, 64}}, {DT_F32, 2, {34, 64}}, [ROWS_NORM] = {DT_F32, 1, {64}}}, .attrs = &normed, .rows_alone = true},
    {.in = {{DT_F32, 3, {1, 1, 320}}, {DT_F32, 2, {70, 320}}, [ROWS_NORM] = {DT_F32, 1, {320}}, {DT_F32, 3, {1, 1, 320}}},
     .attrs = &normed_gated,
     .rows_alone = true},
    {.in = {{DT_F32, 2, {3, 200}}, {DT_F32, 2, {33, 200}}, {DT_F32, 1, {33}}, {DT_F32, 1, {200}}, {DT_F32, 2, {3, 200}}},
     .attrs = &normed,
     .rows_alone = true},
};

/* Shapes of real models. */
static const OpSample rows_linear_large_samples[] = {
    {.in = {{DT_F32, 2, {1, 2048}}, {DT_F32, 2, {1024, 2048}}}, .attrs = &of_four, .rows_alone = true},
    {.in = {{DT_F32, 2, {8, 6912}}, {DT_F32, 2, {1152, 6912}}}, .attrs = &of_four, .rows_alone = true},
    {.in = {{DT_F32, 2, {13, 1152}}, {DT_F32, 2, {1536, 1152}}, {DT_F32, 1, {1536}}}, .attrs = &of_two, .rows_alone = true},
    {.in = {{DT_F32, 2, {31, 3072}}, {DT_F32, 2, {1024, 3072}}}, .attrs = &of_four, .rows_alone = true},
    {.in = {{DT_F32, 2, {150, 3072}}, {DT_F32, 2, {1024, 3072}}}, .attrs = &of_four, .rows_alone = true},
    {.in = {{DT_F32, 2, {7, 1024}}, {DT_F32, 2, {6144, 1024}}}, .attrs = &gated, .rows_alone = true},
    {.in = {{DT_F32, 2, {16, 1024}}, {DT_F32, 2, {6144, 1024}}}, .attrs = &gated, .rows_alone = true},
    {.in = {{DT_F32, 2, {29, 1152}}, {DT_F32, 2, {13824, 1152}}}, .attrs = &gelu, .rows_alone = true},
    {.in = {{DT_F32, 2, {64, 1024}}, {DT_F32, 2, {6148, 1024}}}, .attrs = &gated, .rows_alone = true},
    {.in = {{DT_F32, 2, {1, 1024}}, {DT_F32, 2, {4096, 1024}}, [ROWS_NORM] = {DT_F32, 1, {1024}}}, .attrs = &normed, .rows_alone = true},
    {.in = {{DT_F32, 2, {1, 1024}}, {DT_F32, 2, {6144, 1024}}, [ROWS_NORM] = {DT_F32, 1, {1024}}, {DT_F32, 2, {1, 1024}}},
     .attrs = &normed_gated,
     .rows_alone = true},
    {.in = {{DT_F32, 2, {1, 4096}}, {DT_F32, 2, {1030, 4096}}, [ROWS_NORM] = {DT_F32, 1, {4096}}, {DT_F32, 2, {1, 4096}}},
     .attrs = &normed,
     .rows_alone = true},
    {.in = {{DT_F32, 2, {1, 8192}}, {DT_F32, 2, {600, 8192}}, [ROWS_NORM] = {DT_F32, 1, {8192}}, {DT_F32, 2, {1, 8192}}},
     .attrs = &normed_gated,
     .rows_alone = true},
    {.in = {{DT_F32, 2, {1, 8256}}, {DT_F32, 2, {100, 8256}}, [ROWS_NORM] = {DT_F32, 1, {8256}}, {DT_F32, 2, {1, 8256}}},
     .attrs = &normed,
     .rows_alone = true},
    {.in = {{DT_F32, 2, {8, 1152}}, {DT_F32, 2, {1382, 1152}}, [ROWS_NORM] = {DT_F32, 1, {1152}}, {DT_F32, 2, {8, 1152}}},
     .attrs = &normed_gated,
     .rows_alone = true},
};

const OpDef op_rows_linear = {
    .id = OP_ROWS_LINEAR,
    .name = "rows_linear",
    .synopsis = "y = x w^T + bias; gated: of packed gate and up silu(gate) up, with gelu gelu(gate) up, by tanh; with a norm the "
                "product of rms_norm(x), with a residual of that of s = x + residual",
    .num_in = 5,
    .num_out = 2,
    .min_in = 2,
    .attrs_size = sizeof(RowsLinearAttrs),
    .attrs = rows_linear_attrs,
    .by_row = 1u << ROWS_X | 1u << ROWS_RESIDUAL,
    .infer = rows_linear_infer,
    .cost = rows_linear_cost,
    .workspace = rows_linear_workspace,
    .gpu_workspace = rows_linear_gpu_workspace,
    .cpu = {{DT_SET_DECODE, rows_linear_tiles, "tiles"}, {DT_SET_DECODE, rows_linear_reference, "reference"}},
    .params = 1u << ROWS_W | 1u << ROWS_BIAS | 1u << ROWS_NORM,
    .samples = rows_linear_samples,
    .num_samples = sizeof rows_linear_samples / sizeof rows_linear_samples[0],
    .large = rows_linear_large_samples,
    .num_large = sizeof rows_linear_large_samples / sizeof rows_linear_large_samples[0],
};
