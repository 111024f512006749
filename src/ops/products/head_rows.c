/* head_rows: logits of a few rows, y = x w^T. w has a row for each token, in any format that a head is kept in. The op is bound by reading
 * w, which is read once for any number of rows. If w is bf16 or f16, x is rounded to the same format: products of two such values are exact
 * in fp32. A row's sums don't depend on other rows. */
#include "ops/infer.h"
#include "ops/products/head_rows.h"

static const AttrDef head_rows_attrs[] = {ATTR_INT(HeadRowsAttrs, round, 1), {0}};

/* x (B,D) f32|bf16|f16, w (V,D) f32|bf16|f16|i8, [scale f32 (V)], [bias f32 (V)] -> y f32 (B,C), whose first V columns are the logits, the
 * others 0; C is V rounded up to a multiple of `round`. Only i8 has scales, one for each row of w. */
static Status head_rows_infer(Node *node)
{
    const DTypeSet       floats = DT_SET_DECODE;
    const HeadRowsAttrs *attrs = node->attrs;
    TRY(infer_input(node, HEAD_X, "x", floats, DIMS(-1, -1)));
    int64_t rows = node->in[HEAD_X]->type.dim[0], dim = node->in[HEAD_X]->type.dim[1];
    FAIL_IF(rows > UINT16_MAX || dim > HEAD_MOST_DIM, ERR_INVALID, "x is (%lld,%lld); expected at most (%d,%d)", (long long)rows,
            (long long)dim, UINT16_MAX, HEAD_MOST_DIM);
    TRY(infer_input(node, HEAD_W, "w", floats | DT_SET(DT_I8), DIMS(-1, dim)));
    const TensorType *w = &node->in[HEAD_W]->type;
    FAIL_IF((w->dtype == DT_I8) != (node->in[HEAD_SCALE] != NULL), ERR_INVALID, "w is %s %s scale; expected one with i8 alone",
            dtype_info(w->dtype)->name, node->in[HEAD_SCALE] ? "with" : "without");
    if (node->in[HEAD_SCALE]) TRY(infer_input(node, HEAD_SCALE, "scale", DT_SET_F32, DIMS(w->dim[0])));
    if (node->in[HEAD_BIAS]) TRY(infer_input(node, HEAD_BIAS, "bias", DT_SET_F32, DIMS(w->dim[0])));
    FAIL_IF(attrs->round < 1 || attrs->round > HEAD_MOST_ROUND, ERR_INVALID, "attribute round is %lld, expected 1 to %d",
            (long long)attrs->round, HEAD_MOST_ROUND);
    node->out[0]->type = type_make(DT_F32, 2, node->in[HEAD_X]->type.dim[0], div_up(w->dim[0], attrs->round) * attrs->round);
    return OK;
}

static OpCost head_rows_cost(const Node *node)
{
    OpCost cost = cost_streaming(node, 2 * (double)type_numel(&node->out[0]->type) * (double)node->in[HEAD_X]->type.dim[1]);
    cost.matrix_unit = head_by_halves(node->in[HEAD_W]->type.dtype);
    return cost;
}

/* ---- CPU ---- */

/* Rows of x as floats, then a converted row of w for each worker. */
static size_t head_rows_workspace(const Node *node, int num_workers)
{
    const TensorType *x = &node->in[HEAD_X]->type;
    return (size_t)((x->dim[0] + num_workers) * x->dim[1]) * sizeof(float);
}

static size_t head_rows_gpu_workspace(const Node *node, int sm)
{
    const TensorType *x = &node->in[HEAD_X]->type;
    (void)sm;
    return head_wants_copy(x->dtype, node->in[HEAD_W]->type.dtype) ? (size_t)type_numel(x) * 4 : 0;
}

/* Rows of x as floats, rounded to the values that are multiplied. */
static float *rounded_rows(const KernelArgs *args)
{
    const TensorView *x = &args->in[HEAD_X];
    DType             w = args->in[HEAD_W].type.dtype;
    float            *rows = args->workspace;
    int64_t           numel = type_numel(&x->type);
    dtype_decode(x->type.dtype, x->data, numel, rows);
    for (int64_t i = 0; head_by_halves(w) && x->type.dtype != w && i < numel; i += TILE) {
        uint16_t codes[TILE];
        int64_t  count = min_i64(TILE, numel - i);
        dtype_encode(w, rows + i, count, codes);
        dtype_decode(w, codes, count, rows + i);
    }
    return rows;
}

static void clear_rest(const KernelArgs *args)
{
    int64_t vocab = args->in[HEAD_W].type.dim[0], cols = args->out[0].type.dim[1];
    for (int64_t b = 0; b < args->in[HEAD_X].type.dim[0]; b++)
        for (int64_t v = vocab; v < cols; v++) ((float *)args->out[0].data)[b * cols + v] = 0;
}

static float finished(const KernelArgs *args, int64_t v, float sum)
{
    const float *scale = args->in[HEAD_SCALE].data, *bias = args->in[HEAD_BIAS].data;
    if (scale) sum *= scale[v];
    return bias ? sum + bias[v] : sum;
}

/* Rows of w in a task. */
static int64_t rows_of_task(const KernelArgs *args)
{
    return max_i64(1, 65536 / args->in[HEAD_X].type.dim[1]);
}

VEC_TASK(head_task)
{
    const KernelArgs *args = context;
    const TensorView *w = &args->in[HEAD_W];
    int64_t           rows = args->in[HEAD_X].type.dim[0], dim = w->type.dim[1], vocab = w->type.dim[0], count = rows_of_task(args),
            cols = args->out[0].type.dim[1];
    const float *x = args->workspace;
    float       *scratch = (float *)args->workspace + (rows + worker) * dim, *y = args->out[0].data;
    for (int64_t v = task * count; v < min_i64(vocab, (task + 1) * count); v++) {
        const char  *codes = (const char *)w->data + dtype_bytes(w->type.dtype, v * dim);
        const float *row = (const float *)(const void *)codes;
        if (w->type.dtype != DT_F32) {
            dtype_decode(w->type.dtype, codes, dim, scratch);
            row = scratch;
        }
        for (int64_t b = 0; b < rows; b++) y[b * cols + v] = finished(args, v, vec_row_dot(DT_F32, x + b * dim, row, dim));
    }
}

static Status head_rows_dots(const KernelArgs *args)
{
    rounded_rows(args);
    clear_rest(args);
    pool_run(args->pool, div_up(args->in[HEAD_W].type.dim[0], rows_of_task(args)), head_task, (void *)args);
    return OK;
}

static Status head_rows_reference(const KernelArgs *args)
{
    const TensorView *w = &args->in[HEAD_W];
    int64_t           rows = args->in[HEAD_X].type.dim[0], dim = w->type.dim[1], vocab = w->type.dim[0], cols = args->out[0].type.dim[1];
    const float      *x = rounded_rows(args);
    float            *row = (float *)args->workspace + rows * dim, *y = args->out[0].data;
    clear_rest(args);
    for (int64_t v = 0; v < vocab; v++) {
        dtype_decode(w->type.dtype, (const char *)w->data + dtype_bytes(w->type.dtype, v * dim), dim, row);
        for (int64_t b = 0; b < rows; b++) {
            double sum = 0;
            for (int64_t i = 0; i < dim; i++) sum += (double)x[b * dim + i] * (double)row[i];
            y[b * cols + v] = finished(args, v, (float)sum);
        }
    }
    return OK;
}

/* ---- descriptor ---- */

const OpDef op_head_rows = {
    .id = OP_HEAD_ROWS,
    .name = "head_rows",
    .synopsis = "y = scale * (x w^T) + bias, for a few rows",
    .num_in = 4,
    .num_out = 1,
    .min_in = 2,
    .by_row = 1u << HEAD_X,
    .attrs_size = sizeof(HeadRowsAttrs),
    .attrs = head_rows_attrs,
    .infer = head_rows_infer,
    .cost = head_rows_cost,
    .workspace = head_rows_workspace,
    .gpu_workspace = head_rows_gpu_workspace,
    .cpu = {{HEAD_DTYPES, head_rows_dots, "dots"}, {HEAD_DTYPES, head_rows_reference, "reference"}},
    /* Tolerance: matrix units cut off bits that don't fit beside the largest product. */
    .samples = "[3,20], [37,20], _, [37] rows_alone\n"
               "[11,264], [70,264] {round=8} rows_alone\n"
               "[9,72], bf16[100,72], _, [100] {round=8} rows_alone tolerance=5e-5\n"
               "[2,13], f16[33,13] rows_alone tolerance=5e-5\n"
               "f16[17,64], f16[40,64], _, [40] rows_alone tolerance=5e-5\n"
               "[5,48], i8[50,48], [50], [50] rows_alone\n"
               "[1,7], i8[9,7], [9]\n",
    /* Heads of real models, and batch sizes that kernels treat differently. */
    .large = "[1,2560], [5025,2560], _, [5025]\n"
             "[8,2560], [1003,2560] rows_alone\n"
             "[13,1000], [515,1000] rows_alone\n"
             "[1,2560], bf16[1003,2560] tolerance=5e-5\n"
             "[64,2560], bf16[5025,2560], _, [5025] rows_alone tolerance=5e-5\n"
             "[70,1024], bf16[515,1024] rows_alone tolerance=5e-5\n"
             "[1,2560], f16[1003,2560] tolerance=5e-5\n"
             "[30,1000], f16[515,1000] rows_alone tolerance=5e-5\n"
             "[1,2560], i8[1003,2560], [1003]\n"
             "[12,1040], i8[515,1040], [515] rows_alone\n",
};
