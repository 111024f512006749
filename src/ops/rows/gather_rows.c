/* gather_rows: rows of a matrix by their ids, each as often as its id occurs. scatter_add_rows, its gradient: adds up rows by their ids. On
 * the CPU an id outside the matrix is an error; on a GPU gather_rows gives NaN for it, and scatter_add_rows skips it. */
#include "ops/rows/embedding_dw.h"

#include "ops/infer.h"

static const AttrDef scatter_attrs[] = {ATTR_INT(ScatterAttrs, size, 1), ATTR_DTYPE(ScatterAttrs, dtype), {0}};

/* x (R,C), ids i32 (...) -> y (...,C) of x's dtype. */
static Status gather_rows_infer(Node *node)
{
    TRY(infer_input(node, 0, "x", DT_SET_DECODE, DIMS(-1, -1)));
    TRY(infer_like(node, 1, "ids", DT_SET(DT_I32), &node->in[1]->type));
    const TensorType *x = &node->in[0]->type;
    TensorType        y = type_as(&node->in[1]->type, x->dtype);
    char              text[64];
    FAIL_IF(y.ndim >= TENSOR_MAX_DIMS, ERR_INVALID, "ids is %s, expected at most %d dims", type_text(&node->in[1]->type, text),
            TENSOR_MAX_DIMS - 1);
    y.dim[y.ndim++] = x->dim[1];
    node->out[0]->type = y;
    return OK;
}

/* x (...,C), ids i32 (...) -> y (size,C). */
static Status scatter_add_rows_infer(Node *node)
{
    const ScatterAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "x", 2));
    const TensorType *x = &node->in[0]->type;
    TensorType        ids = type_without_last(x, DT_I32);
    TRY(infer_like(node, 1, "ids", DT_SET(DT_I32), &ids));
    DType dtype = attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : x->dtype;
    FAIL_IF(attrs->size < 1 || attrs->size > INT32_MAX, ERR_INVALID, "attribute size is %lld, expected the number of rows of y",
            (long long)attrs->size);
    FAIL_IF(!(DT_SET(dtype) & DT_SET_FLOAT), ERR_INVALID, "attribute dtype is %s, expected f32 or bf16", dtype_info(dtype)->name);
    node->out[0]->type = type_make(dtype, 2, attrs->size, type_cols(x));
    return OK;
}

static Status gather_rows_backward(GradBuilder *grad, const Node *node)
{
    const TensorType *x = &node->in[0]->type;
    ScatterAttrs      attrs = {.size = x->dim[0], .dtype = DTYPE_TO_ATTR(x->dtype)};
    Value            *in[] = {grad_of(grad, node->out[0]), node->in[1]}, *dx;
    TRY(grad_emit(grad, OP_SCATTER_ADD_ROWS, &attrs, in, 2, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static Status scatter_add_rows_backward(GradBuilder *grad, const Node *node)
{
    Value    *in[] = {grad_of(grad, node->out[0]), node->in[1]}, *dx;
    CastAttrs cast = {.dtype = DTYPE_TO_ATTR(node->in[0]->type.dtype)};
    TRY(grad_emit(grad, OP_GATHER_ROWS, NULL, in, 2, ~0u, &dx));
    if (dx->type.dtype != node->in[0]->type.dtype) TRY(grad_emit(grad, OP_CAST, &cast, &dx, 1, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static OpCost gather_rows_cost(const Node *node)
{
    return (OpCost){.bytes = 2.0 * (double)type_bytes(&node->out[0]->type) + (double)type_bytes(&node->in[1]->type)};
}

static OpCost scatter_add_rows_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[0]->type));
}

static size_t scatter_add_rows_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return rows_added_workspace(type_numel(&node->in[1]->type), ((const ScatterAttrs *)node->attrs)->size);
}

static size_t scatter_add_rows_gpu_workspace(const Node *node, int sm)
{
    (void)sm;
    return rows_added_gpu_workspace(type_numel(&node->in[1]->type));
}

static void gather_rows_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[0], *y = &args->out[0];
    const int32_t    *ids = args->in[1].data;
    int64_t           cols = type_cols(&x->type), step = rows_per_task(cols);
    (void)worker;
    for (int64_t row = task * step; row < min_i64(type_rows(&y->type), (task + 1) * step); row++)
        tile_copy(y, row * cols, x, ids[row] * cols, cols);
}

static Status gather_rows_cpu(const KernelArgs *args)
{
    const int32_t *ids = args->in[1].data;
    int64_t        count = type_numel(&args->in[1].type), rows = args->in[0].type.dim[0];
    for (int64_t i = 0; i < count; i++)
        FAIL_IF(ids[i] < 0 || ids[i] >= rows, ERR_INVALID, "id %d at position %lld is outside the %lld rows of x", ids[i], (long long)i,
                (long long)rows);
    pool_run(args->pool, div_up(count, rows_per_task(type_cols(&args->in[0].type))), gather_rows_task, (void *)args);
    return OK;
}

static Status scatter_add_rows_cpu(const KernelArgs *args)
{
    return rows_added_cpu(args, &args->in[1], &args->in[0]);
}

const OpDef op_gather_rows = {
    .id = OP_GATHER_ROWS,
    .name = "gather_rows",
    .synopsis = "y[n] = x[ids[n]]",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .by_row = 1u << 1,
    .infer = gather_rows_infer,
    .backward = gather_rows_backward,
    .cost = gather_rows_cost,
    .cpu = {{DT_SET_DECODE, gather_rows_cpu, "reference"}},
    .samples = "[7,12], i32[9] below=7\n"
               "[600,1030], i32[3,40] below=600\n"
               "[1,3], i32[2,3,4] below=1\n",
    .large = "[1400,1024], i32[700,8] below=1400\n",
};

const OpDef op_scatter_add_rows = {
    .id = OP_SCATTER_ADD_ROWS,
    .name = "scatter_add_rows",
    .synopsis = "y[r] = sum of x[n] where ids[n] = r",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .attrs_size = sizeof(ScatterAttrs),
    .attrs = scatter_attrs,
    .infer = scatter_add_rows_infer,
    .backward = scatter_add_rows_backward,
    .cost = scatter_add_rows_cost,
    .workspace = scatter_add_rows_workspace,
    .gpu_workspace = scatter_add_rows_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, scatter_add_rows_cpu, "reference"}},
    .samples = "[9,12], i32[9] below=7 {size=7}\n"
               "[3,40,1030], i32[3,40] below=600 {size=600}\n"
               "[2,50,12], i32[2,50] below=7 {size=7, dtype=f32}\n",
    .large = "[700,2,1024], i32[700,2] below=300 {size=1000}\n",
};
