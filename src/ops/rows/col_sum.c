/* col_sum: the sum of rows, dy (N,M) -> (M): the gradient of a bias. */
#include "ops/infer.h"
#include "ops/gpu_sums.h"

static const AttrDef col_sum_attrs[] = {ATTR_DTYPE(ColSumAttrs, dw_dtype), {0}};

/* dy (...,M), [acc (M)] -> (M), in dy's dtype unless attribute dw_dtype says another. */
static Status col_sum_infer(Node *node)
{
    const ColSumAttrs *attrs = node->attrs;
    TRY(infer_float(node, 0, "dy", 2));
    TensorType sum = type_make(node->in[0]->type.dtype, 1, type_cols(&node->in[0]->type));
    TRY(infer_dw(node, 1, "acc", attrs->dw_dtype, &sum));
    node->out[0]->type = sum;
    return OK;
}

static OpCost col_sum_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[0]->type));
}

static size_t col_sum_workspace(const Node *node, int num_workers)
{
    const TensorType *dy = &node->in[0]->type;
    (void)num_workers;
    return (size_t)(num_chunks(type_rows(dy)) * type_cols(dy)) * sizeof(float);
}

static size_t col_sum_gpu_workspace(const Node *node, int sm)
{
    const TensorType *dy = &node->in[0]->type;
    (void)sm;
    return sum_chunks_bytes(dy, type_cols(dy), 1);
}

VEC_TASK(col_sum_task)
{
    const KernelArgs *args = context;
    const TensorView *dy = &args->in[0];
    int64_t           rows = type_rows(&dy->type), cols = type_cols(&dy->type), step = chunk_rows(rows);
    int64_t           end = min_i64(rows, (task + 1) * step);
    float            *sum = (float *)args->workspace + task * cols;
    (void)worker;
    memset(sum, 0, (size_t)cols * sizeof(float));
    for (int64_t row = task * step; row < end; row++)
        VEC_OF(dy->type.dtype, vec_sum_row, sum, vec_at(dy->data, dy->type.dtype, row * cols), cols);
}

static Status col_sum_cpu(const KernelArgs *args)
{
    int64_t chunks = num_chunks(type_rows(&args->in[0].type)), cols = type_cols(&args->in[0].type);
    pool_run(args->pool, chunks, col_sum_task, (void *)args);
    chunks_combine(&args->out[0], args->accumulate & 1, args->workspace, chunks, cols, cols);
    return OK;
}

const OpDef op_col_sum = {
    .id = OP_COL_SUM,
    .name = "col_sum",
    .synopsis = "sum over rows of dy",
    .num_in = 2,
    .num_out = 1,
    .min_in = 1,
    .alias = {{.out = 0, .in = 1, .accumulate = true}},
    .num_alias = 1,
    .attrs_size = sizeof(ColSumAttrs),
    .attrs = col_sum_attrs,
    .infer = col_sum_infer,
    .cost = col_sum_cost,
    .workspace = col_sum_workspace,
    .gpu_workspace = col_sum_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, col_sum_cpu, "reference"}},
    .samples = "[5,7], [7]\n"
               "[300,1100]\n"
               "[70,9] {dw_dtype=f32}\n",
    .large = "[4096,1024]\n",
};
