/* sum_squares: the sum of x^2 over a flat tensor, such as the squared norm of a gradient. TILE elements at a time are summed in fp32,
 * these sums in fp64. */
#include "ops/infer.h"
#include "ops/gpu_sums.h"

enum { SQUARES_PER_TASK = 64 * TILE };

/* x (E) -> (1) f32. */
static Status sum_squares_infer(Node *node)
{
    TRY(infer_input(node, 0, "x", DT_SET_FLOAT, DIMS(-1)));
    node->out[0]->type = type_make(DT_F32, 1, INT64_C(1));
    return OK;
}

static OpCost sum_squares_cost(const Node *node)
{
    return cost_streaming(node, 2.0 * (double)type_numel(&node->in[0]->type));
}

/* Room for each task's partial sum in fp64. */
static size_t sum_squares_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return (size_t)div_up(type_numel(&node->in[0]->type), SQUARES_PER_TASK) * sizeof(double);
}

static size_t sum_squares_gpu_workspace(const Node *node, int sm)
{
    int64_t count = type_numel(&node->in[0]->type);
    (void)sm;
    return (size_t)div_up(count, squares_of_block(count)) * sizeof(double);
}

VEC_TASK(sum_squares_task)
{
    const KernelArgs *args = context;
    int64_t           end = min_i64(type_numel(&args->in[0].type), (task + 1) * SQUARES_PER_TASK);
    double            sum = 0;
    DType             dtype = args->in[0].type.dtype;
    (void)worker;
    for (int64_t at = task * SQUARES_PER_TASK; at < end; at += TILE)
        sum += (double)VEC_OF(dtype, vec_row_squares, vec_at(args->in[0].data, dtype, at), min_i64(TILE, end - at));
    ((double *)args->workspace)[task] = sum;
}

static Status sum_squares_cpu(const KernelArgs *args)
{
    int64_t tasks = div_up(type_numel(&args->in[0].type), SQUARES_PER_TASK);
    pool_run(args->pool, tasks, sum_squares_task, (void *)args);
    double sum = 0;
    for (int64_t i = 0; i < tasks; i++) sum += ((const double *)args->workspace)[i];
    *(float *)args->out[0].data = (float)sum;
    return OK;
}

const OpDef op_sum_squares = {
    .id = OP_SUM_SQUARES,
    .name = "sum_squares",
    .synopsis = "sum of x^2",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .infer = sum_squares_infer,
    .cost = sum_squares_cost,
    .workspace = sum_squares_workspace,
    .gpu_workspace = sum_squares_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, sum_squares_cpu, "reference"}},
    .samples = "[37]\n"
               "[200003]\n",
    .large = "[3000000]\n",
};
