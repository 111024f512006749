/* columns: some columns of x, for example each head's query in a packed projection. columns_bwd: dx is dy in these columns, 0 in others. */
#include "ops/infer.h"

static const AttrDef columns_attrs[] = {ATTR_INT(ColumnsAttrs, begin, 0), ATTR_INT(ColumnsAttrs, size, 0), {0}};
static const AttrDef columns_bwd_attrs[] = {ATTR_INT(ColumnsAttrs, begin, 0), ATTR_INT(ColumnsAttrs, cols, 0), {0}};

static Status check_columns(int64_t begin, int64_t size, int64_t cols)
{
    FAIL_IF(begin < 0 || size < 1 || size > cols || begin > cols - size, ERR_INVALID,
            "%lld columns from %lld on of rows of %lld: attributes begin and size don't fit", (long long)size, (long long)begin,
            (long long)cols);
    return OK;
}

/* x (...,C) -> y (...,size) of x's dtype. */
static Status columns_infer(Node *node)
{
    const ColumnsAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "x", 1));
    TensorType y = node->in[0]->type;
    TRY(check_columns(attrs->begin, attrs->size, type_cols(&y)));
    y.dim[y.ndim - 1] = attrs->size;
    node->out[0]->type = y;
    return OK;
}

/* dy (...,S), [acc (...,cols)] -> dx (...,cols) of acc's dtype, else dy's. */
static Status columns_bwd_infer(Node *node)
{
    const ColumnsAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "dy", 1));
    TensorType dx = node->in[0]->type;
    TRY(check_columns(attrs->begin, type_cols(&dx), attrs->cols));
    dx.dim[dx.ndim - 1] = attrs->cols;
    if (node->in[1]) {
        TRY(infer_like(node, 1, "acc", DT_SET_FLOAT, &dx));
        dx = node->in[1]->type;
    }
    node->out[0]->type = dx;
    return OK;
}

static Status columns_backward(GradBuilder *grad, const Node *node)
{
    ColumnsAttrs attrs = {.begin = ((const ColumnsAttrs *)node->attrs)->begin, .cols = type_cols(&node->in[0]->type)};
    Value       *in[] = {grad_of(grad, node->out[0]), NULL}, *dx;
    TRY(grad_emit(grad, OP_COLUMNS_BWD, &attrs, in, 2, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static OpCost columns_cost(const Node *node)
{
    return (OpCost){.bytes = 2.0 * (double)type_bytes(&node->out[0]->type)};
}

static OpCost columns_bwd_cost(const Node *node)
{
    return (OpCost){.bytes = (double)type_bytes(&node->in[0]->type) + (double)type_bytes(&node->out[0]->type)};
}

static void columns_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[0], *y = &args->out[0];
    int64_t           begin = ((const ColumnsAttrs *)args->attrs)->begin, cols = type_cols(&x->type), size = type_cols(&y->type);
    int64_t           step = rows_per_task(size), end = min_i64(type_rows(&x->type), (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++) tile_copy(y, row * size, x, row * cols + begin, size);
}

/* Sets elements [at, at + count) of dx to 0. */
static void fill_zero(const TensorView *dx, int64_t at, int64_t count)
{
    memset(vec_at_mut(dx->data, dx->type.dtype, at), 0, (size_t)dtype_bytes(dx->type.dtype, count));
}

static void columns_bwd_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *dy = &args->in[0], *dx = &args->out[0];
    int64_t           begin = ((const ColumnsAttrs *)args->attrs)->begin, cols = type_cols(&dx->type), size = type_cols(&dy->type);
    int64_t           step = rows_per_task(cols), end = min_i64(type_rows(&dy->type), (task + 1) * step);
    float             scratch[TILE];
    (void)worker;
    for (int64_t row = task * step; row < end; row++) {
        int64_t at = row * cols;
        if (args->accumulate & 1) {
            for (int64_t c = 0; c < size; c += TILE) {
                int64_t n = min_i64(TILE, size - c);
                tile_add(dx, at + begin + c, tile_load(dy, row * size + c, n, scratch), n);
            }
            continue;
        }
        fill_zero(dx, at, begin);
        tile_copy(dx, at + begin, dy, row * size, size);
        fill_zero(dx, at + begin + size, cols - begin - size);
    }
}

static Status columns_cpu(const KernelArgs *args)
{
    const TensorType *y = &args->out[0].type;
    pool_run(args->pool, div_up(type_rows(y), rows_per_task(type_cols(y))), columns_task, (void *)args);
    return OK;
}

static Status columns_bwd_cpu(const KernelArgs *args)
{
    const TensorType *dx = &args->out[0].type;
    pool_run(args->pool, div_up(type_rows(dx), rows_per_task(type_cols(dx))), columns_bwd_task, (void *)args);
    return OK;
}

const OpDef op_columns = {
    .id = OP_COLUMNS,
    .name = "columns",
    .synopsis = "y = x[..., begin:begin+size]",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .attrs_size = sizeof(ColumnsAttrs),
    .attrs = columns_attrs,
    .infer = columns_infer,
    .backward = columns_backward,
    .cost = columns_cost,
    .cpu = {{DT_SET_DECODE, columns_cpu, "reference"}},
    .samples = "[5,7] {begin=2, size=3}\n"
               "[3,2,1356] {begin=256, size=1100}\n",
    .large = "[2,128,8,192] {begin=64, size=64}\n",
};

const OpDef op_columns_bwd = {
    .id = OP_COLUMNS_BWD,
    .name = "columns_bwd",
    .synopsis = "dx[..., begin:begin+S] = dy, the other columns 0",
    .num_in = 2,
    .num_out = 1,
    .min_in = 1,
    .alias = {{.out = 0, .in = 1, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(ColumnsAttrs),
    .attrs = columns_bwd_attrs,
    .infer = columns_bwd_infer,
    .cost = columns_bwd_cost,
    .cpu = {{DT_SET_FLOAT, columns_bwd_cpu, "reference"}},
    .samples = "[5,3] {begin=2, cols=7}\n"
               "[3,2,1100], [3,2,1356] {begin=256, cols=1356}\n",
    .large = "[2,128,8,64] {begin=64, cols=192}\n"
             "[2,128,8,64], [2,128,8,192] {begin=64, cols=192}\n",
};
