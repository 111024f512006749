/* linear_dw: dw = alpha dy[:, col:col+M]^T x, summed over all rows: gradient of a linear layer's weight. */
#include "ops/products/gemm.h"

static const AttrDef linear_dw_attrs[] = {ATTR_FLOAT(LinearAttrs, alpha, 1),
                                          ATTR_INT(LinearAttrs, col, 0),
                                          ATTR_INT(LinearAttrs, rows, 0),
                                          ATTR_DTYPE(LinearAttrs, dw_dtype),
                                          {0}};

/* dy (...,Y), x (...,K) with dy's number of rows, [acc (M,K)] -> dw (M,K), in dy's dtype unless acc or an attribute names another. */
static Status linear_dw_infer(Node *node)
{
    const LinearAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "dy", 2));
    TRY(infer_float(node, 1, "x", 2));
    const TensorType *dy = &node->in[0]->type, *x = &node->in[1]->type;
    FAIL_IF(type_rows(dy) != type_rows(x), ERR_INVALID, "dy has %lld rows and x %lld, expected the same", (long long)type_rows(dy),
            (long long)type_rows(x));
    FAIL_IF(attrs->rows < 1, ERR_INVALID, "attribute rows is %lld, expected the number of rows of dw", (long long)attrs->rows);
    FAIL_IF(attrs->col < 0 || attrs->col + attrs->rows > type_cols(dy), ERR_INVALID,
            "columns %lld to %lld of dy, which has %lld: attributes col and rows don't fit", (long long)attrs->col,
            (long long)(attrs->col + attrs->rows), (long long)type_cols(dy));
    TensorType dw = type_make(dy->dtype, 2, attrs->rows, type_cols(x));
    TRY(infer_dw(node, 2, "acc", attrs->dw_dtype, &dw));
    node->out[0]->type = dw;
    return OK;
}

GEMM_COST(linear_dw)
GEMM_KERNELS(linear_dw)

const OpDef op_linear_dw = {
    .id = OP_LINEAR_DW,
    .name = "linear_dw",
    .synopsis = "dw = alpha dy[:, col:col+M]^T x",
    .num_in = 3,
    .num_out = 1,
    .min_in = 2,
    .alias = {{.out = 0, .in = 2, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(LinearAttrs),
    .attrs = linear_dw_attrs,
    .infer = linear_dw_infer,
    .cost = linear_dw_cost,
    .workspace = linear_dw_workspace,
    .cpu = {{DT_SET_FLOAT, linear_dw_tiles, "tiles"}, {DT_SET_FLOAT, linear_dw_reference, "reference"}},
    .samples = "[3,7], [3,5], [7,5] {rows=7}\n"
               "[2,640,50], [2,640,20] {alpha=0.5, col=6, rows=30}\n"
               "[70,7], [70,5] {rows=7, dw_dtype=f32}\n",
    .large = "[2,512,1024], [2,512,256], [512,256] {alpha=2, col=256, rows=512}\n"
             "[2,1024,16], [2,1024,1024], [16,1024] {rows=16}\n"
             "[2,1024,16], [2,1024,1024] {rows=16, dw_dtype=f32}\n",
};
