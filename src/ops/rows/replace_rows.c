/* replace_rows: a matrix with some rows replaced: for example the rows of a few tokens that are trained beside a frozen embedding. rows_at,
 * its gradient: the rows at these ids. If an id is given twice, its last row counts; its other rows get gradient 0. */
#include "ops/infer.h"

static const AttrDef rows_at_attrs[] = {ATTR_DTYPE(RowsAtAttrs, dw_dtype), {0}};

/* w (V,C), ids i64 (N), [rows (N,C); absent: zeros] -> y (V,C). */
static Status replace_rows_infer(Node *node)
{
    TRY(infer_input(node, 0, "w", DT_SET_DECODE, DIMS(-1, -1)));
    TRY(infer_input(node, 1, "ids", DT_SET(DT_I64), DIMS(-1)));
    const TensorType *w = &node->in[0]->type, *ids = &node->in[1]->type;
    if (node->in[2]) TRY(infer_input(node, 2, "rows", DT_SET_DECODE, DIMS(ids->dim[0], w->dim[1])));
    node->out[0]->type = *w;
    return OK;
}

/* dy (V,C), ids i64 (N), [acc (N,C)] -> drows (N,C), in dy's dtype unless attribute dw_dtype says another. */
static Status rows_at_infer(Node *node)
{
    TRY(infer_input(node, 0, "dy", DT_SET_FLOAT, DIMS(-1, -1)));
    TRY(infer_input(node, 1, "ids", DT_SET(DT_I64), DIMS(-1)));
    TensorType drows = type_make(node->in[0]->type.dtype, 2, node->in[1]->type.dim[0], node->in[0]->type.dim[1]);
    TRY(infer_dw(node, 2, "acc", ((const RowsAtAttrs *)node->attrs)->dw_dtype, &drows));
    node->out[0]->type = drows;
    return OK;
}

static Status replace_rows_backward(GradBuilder *grad, const Node *node)
{
    Value *w = node->in[0], *ids = node->in[1], *rows = node->in[2], *dy = grad_of(grad, node->out[0]), *out[1];
    if (rows && grad_wanted(grad, rows)) {
        RowsAtAttrs attrs = {.dw_dtype = grad_dw_dtype(grad, rows, dy->type.dtype)};
        Value      *in[] = {dy, ids, grad_accumulator(grad, rows)};
        TRY(grad_emit(grad, OP_ROWS_AT, &attrs, in, 3, 1, out));
        grad_set(grad, rows, out[0]);
    }
    if (!grad_wanted(grad, w)) return OK;
    Value *in[] = {dy, ids, NULL};
    TRY(grad_emit(grad, OP_REPLACE_ROWS, NULL, in, 3, ~0u, out));
    return grad_add(grad, w, out[0]);
}

static OpCost replace_rows_cost(const Node *node)
{
    double rows = node->in[2] ? (double)type_bytes(&node->in[2]->type) : 0;
    return (OpCost){.bytes = 2.0 * (double)type_bytes(&node->out[0]->type) + 2 * rows};
}

static OpCost rows_at_cost(const Node *node)
{
    return (OpCost){.bytes = (node->in[2] ? 3.0 : 2.0) * (double)type_bytes(&node->out[0]->type)};
}

static Status check_ids(const TensorView *ids, int64_t rows)
{
    const int64_t *id = ids->data;
    for (int64_t k = 0; k < ids->type.dim[0]; k++)
        FAIL_IF(id[k] < 0 || id[k] >= rows, ERR_INVALID, "id %lld is outside the %lld rows", (long long)id[k], (long long)rows);
    return OK;
}

static bool is_last(const int64_t *ids, int64_t k, int64_t count)
{
    for (int64_t i = k + 1; i < count; i++)
        if (ids[i] == ids[k]) return false;
    return true;
}

VEC_TASK(replace_rows_task)
{
    const KernelArgs *args = context;
    const TensorView *w = &args->in[0], *y = &args->out[0];
    int64_t cols = w->type.dim[1], step = rows_moved(args, w->type.dim[0], cols), end = min_i64(w->type.dim[0], (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++) tile_copy(y, row * cols, w, row * cols, cols);
}

static Status replace_rows_cpu(const KernelArgs *args)
{
    const TensorView *ids = &args->in[1], *rows = &args->in[2], *y = &args->out[0];
    int64_t           count = y->type.dim[0], cols = y->type.dim[1];
    TRY(check_ids(ids, count));
    pool_run(args->pool, div_up(count, rows_moved(args, count, cols)), replace_rows_task, (void *)args);
    for (int64_t k = 0; k < ids->type.dim[0]; k++) {
        int64_t at = ((const int64_t *)ids->data)[k] * cols;
        if (rows->data)
            tile_copy(y, at, rows, k * cols, cols);
        else
            memset(vec_at_mut(y->data, y->type.dtype, at), 0, (size_t)dtype_bytes(y->type.dtype, cols));
    }
    return OK;
}

static Status rows_at_cpu(const KernelArgs *args)
{
    const TensorView *dy = &args->in[0], *ids = &args->in[1], *drows = &args->out[0];
    int64_t           count = ids->type.dim[0], cols = dy->type.dim[1];
    float             scratch[TILE];
    TRY(check_ids(ids, dy->type.dim[0]));
    for (int64_t k = 0; k < count; k++) {
        bool counts = is_last(ids->data, k, count);
        for (int64_t c = 0, n; c < cols; c += n) {
            n = min_i64(TILE, cols - c);
            const float *from = tile_load(dy, ((const int64_t *)ids->data)[k] * cols + c, n, scratch);
            if (!counts) from = memset(scratch, 0, (size_t)n * sizeof *scratch);
            if (args->accumulate & 1)
                tile_add(drows, k * cols + c, from, n);
            else
                tile_store(drows, k * cols + c, from, n);
        }
    }
    return OK;
}

const OpDef op_replace_rows = {
    .id = OP_REPLACE_ROWS,
    .name = "replace_rows",
    .params = 1u << 2,
    .synopsis = "y = w with row ids[k] = rows[k], or 0 without rows",
    .num_in = 3,
    .num_out = 1,
    .min_in = 2,
    .infer = replace_rows_infer,
    .backward = replace_rows_backward,
    .cost = replace_rows_cost,
    .cpu = {{DT_SET_DECODE, replace_rows_cpu, "reference"}},
    .samples = "[7,12], i64[5] below=7, [5,12]\n"
               "[300,1030], i64[3] below=300, [3,1030]\n"
               "[9,33], i64[4] below=9\n",
    .large = "[32000,1024], i64[8] below=32000, [8,1024]\n",
};

const OpDef op_rows_at = {
    .id = OP_ROWS_AT,
    .name = "rows_at",
    .synopsis = "drows[k] = dy[ids[k]]",
    .num_in = 3,
    .num_out = 1,
    .min_in = 2,
    .alias = {{.out = 0, .in = 2, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(RowsAtAttrs),
    .attrs = rows_at_attrs,
    .infer = rows_at_infer,
    .cost = rows_at_cost,
    .cpu = {{DT_SET_FLOAT, rows_at_cpu, "reference"}},
    .samples = "[7,12], i64[5] below=7, [5,12]\n"
               "[300,1030], i64[3] below=300\n"
               "[9,33], i64[4] below=9 {dw_dtype=f32}\n",
    .large = "[32000,1024], i64[8] below=32000\n",
};
