/* rows_linear: decoding's linear layers. y = x w^T + bias of few rows, as in linear; with `gated` the product is packed gate and up,
 * rounded to y's dtype as linear stores it, and y is what swiglu makes of it. With `norm` the product reads the norm of x, or with
 * `residual` the norm of s = x + residual, as rms_norm and add_rms_norm compute it.
 *
 * With `parts` a GPU cuts each sum into this many sums over equal parts of k, computes them side by side, and adds them up as (0 + 1) + (2
 * + 3). The CPU computes each sum whole. */
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
    if (((const RowsLinearAttrs *)node->attrs)->gated) cost.bytes -= (double)type_bytes(&node->out[0]->type); /* y is half of the product */
    return cost;
}

/* ---- CPU ---- */

static RowsFused rows_linear_fused(const KernelArgs *args)
{
    const RowsLinearAttrs *attrs = args->attrs;
    return (RowsFused){ROWS_NORM, attrs->gated, attrs->gelu, attrs->eps, attrs->offset};
}

static size_t rows_linear_workspace(const Node *node, int num_workers)
{
    NodeArgs          storage;
    const KernelArgs *args = node_args(node, &storage);
    RowsFused         fused = rows_linear_fused(args);
    Gemm              g;
    products_note(args, &g, rows_linear_products(args, &g));
    return rows_fused_workspace(args, &fused, &g, num_workers);
}

/* Bytes of the normed rows, if the norm has a launch of its own. */
static size_t rows_linear_gpu_workspace(const Node *node, int sm)
{
    NodeArgs storage;
    (void)sm;
    return rows_normed_bytes(node_args(node, &storage), ROWS_NORM);
}

static Status rows_linear_run(const KernelArgs *args, bool reference)
{
    RowsFused fused = rows_linear_fused(args);
    Gemm      g;
    products_note(args, &g, rows_linear_products(args, &g));
    return rows_fused_run(args, &fused, &g, reference);
}

static Status rows_linear_tiles(const KernelArgs *args)
{
    return rows_linear_run(args, false);
}

static Status rows_linear_reference(const KernelArgs *args)
{
    return rows_linear_run(args, true);
}

const OpDef op_rows_linear = {
    .id = OP_ROWS_LINEAR,
    .name = "rows_linear",
    .synopsis = "y = x w^T + bias; with norm x stands for rms_norm(x), with residual for rms_norm(x + residual); gated: x w^T is "
                "packed gate and up, y = silu(gate) up, or with gelu gelu(gate) up",
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
    .samples = "[3,5], [7,5], [7] rows_alone\n"
               "[5,1,128], [50,128] {parts=2, eps=0} rows_alone\n"
               "[9,256], [18,256], [18] {parts=4, eps=0} rows_alone\n"
               "[4,1,72], [34,72] {gated=true, eps=0} rows_alone\n"
               "[3,64], [70,64] {gated=true, gelu=true, eps=0} rows_alone\n"
               "[1,64], [34,64], _, [64] {offset=1} rows_alone\n"
               "[1,1,320], [70,320], _, [320], [1,1,320] {gated=true, eps=1e-05} rows_alone\n"
               "[3,200], [33,200], [33], [200], [3,200] {offset=1} rows_alone\n",
    .large = "[1,2048], [1024,2048] {parts=4, eps=0} rows_alone\n"
             "[8,6912], [1152,6912] {parts=4, eps=0} rows_alone\n"
             "[13,1152], [1536,1152], [1536] {parts=2, eps=0} rows_alone\n"
             "[31,3072], [1024,3072] {parts=4, eps=0} rows_alone\n"
             "[150,3072], [1024,3072] {parts=4, eps=0} rows_alone\n"
             "[7,1024], [6144,1024] {gated=true, eps=0} rows_alone\n"
             "[16,1024], [6144,1024] {gated=true, eps=0} rows_alone\n"
             "[29,1152], [13824,1152] {gated=true, gelu=true, eps=0} rows_alone\n"
             "[64,1024], [6148,1024] {gated=true, eps=0} rows_alone\n"
             "[1,1024], [4096,1024], _, [1024] {offset=1} rows_alone\n"
             "[1,1024], [6144,1024], _, [1024], [1,1024] {gated=true, eps=1e-05} rows_alone\n"
             "[1,4096], [1030,4096], _, [4096], [1,4096] {offset=1} rows_alone\n"
             "[1,8192], [600,8192], _, [8192], [1,8192] {gated=true, eps=1e-05} rows_alone\n"
             "[1,8256], [100,8256], _, [8256], [1,8256] {offset=1} rows_alone\n"
             "[8,1152], [1382,1152], _, [1152], [8,1152] {gated=true, eps=1e-05} rows_alone\n",
};
