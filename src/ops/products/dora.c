/* dora: gives the columns of a layer's product the trained lengths m instead of their own (Liu et al. 2024): y m / norm + bias. The
 * gradient of y is this op on dy, without a bias; the gradient of m is dora_dm.
 *
 * dora_dm: the sum over rows of dy y / norm. */
#include "ops/gpu_sums.h"
#include "ops/infer.h"

#include <string.h>

static const AttrDef dora_dm_attrs[] = {ATTR_DTYPE(ColSumAttrs, dw_dtype), {0}};

enum { Y, M, NORM, BIAS };
enum { IN_DY, IN_Y, IN_NORM, IN_ACC };

/* y (...,C), m (C), norm f32 (C), [bias (C)] -> y' of y's type. */
static Status dora_infer(Node *node)
{
    TRY(infer_float(node, Y, "y", 2));
    const TensorType *y = &node->in[Y]->type;
    TRY(infer_input(node, M, "m", DT_SET_DECODE, DIMS(type_cols(y))));
    TRY(infer_input(node, NORM, "norm", DT_SET_F32, DIMS(type_cols(y))));
    if (node->in[BIAS]) TRY(infer_input(node, BIAS, "bias", DT_SET_DECODE, DIMS(type_cols(y))));
    node->out[0]->type = *y;
    return OK;
}

/* dy, y (...,C), norm f32 (C), [acc (C)] -> dm (C), in dy's dtype unless acc or an attribute names another. */
static Status dora_dm_infer(Node *node)
{
    TRY(infer_float(node, IN_DY, "dy", 2));
    const TensorType *dy = &node->in[IN_DY]->type;
    TensorType        dm = type_make(dy->dtype, 1, type_cols(dy));
    TRY(infer_like(node, IN_Y, "y", DT_SET_FLOAT, dy));
    TRY(infer_input(node, IN_NORM, "norm", DT_SET_F32, DIMS(type_cols(dy))));
    TRY(infer_dw(node, IN_ACC, "acc", ((const ColSumAttrs *)node->attrs)->dw_dtype, &dm));
    node->out[0]->type = dm;
    return OK;
}

static Status dora_backward(GradBuilder *grad, const Node *node)
{
    Value *y = node->in[Y], *m = node->in[M], *norm = node->in[NORM], *bias = node->in[BIAS], *dy = grad_of(grad, node->out[0]), *out;
    if (!dy) return OK;
    if (grad_wanted(grad, y)) {
        Value *in[] = {dy, m, norm, NULL};
        TRY(grad_emit(grad, OP_DORA, NULL, in, 4, ~0u, &out));
        TRY(grad_add(grad, y, out));
    }
    if (grad_wanted(grad, m)) {
        ColSumAttrs attrs = {.dw_dtype = grad_dw_dtype(grad, m, dy->type.dtype)};
        Value      *in[] = {dy, y, norm, grad_accumulator(grad, m)};
        TRY(grad_emit(grad, OP_DORA_DM, &attrs, in, 4, ~0u, &out));
        grad_set(grad, m, out);
    }
    if (bias && grad_wanted(grad, bias)) {
        ColSumAttrs attrs = {.dw_dtype = grad_dw_dtype(grad, bias, dy->type.dtype)};
        Value      *in[] = {dy, grad_accumulator(grad, bias)};
        TRY(grad_emit(grad, OP_COL_SUM, &attrs, in, 2, ~0u, &out));
        grad_set(grad, bias, out);
    }
    return OK;
}

static OpCost dora_cost(const Node *node)
{
    return cost_streaming(node, 3.0 * (double)type_numel(&node->in[Y]->type));
}

static OpCost dora_dm_cost(const Node *node)
{
    return cost_streaming(node, 2.0 * (double)type_numel(&node->in[IN_DY]->type));
}

static size_t dora_dm_workspace(const Node *node, int num_workers)
{
    const TensorType *dy = &node->in[IN_DY]->type;
    (void)num_workers;
    return (size_t)(num_chunks(type_rows(dy)) * type_cols(dy)) * sizeof(float);
}

static size_t dora_dm_gpu_workspace(const Node *node, int sm)
{
    const TensorType *dy = &node->in[IN_DY]->type;
    (void)sm;
    return sum_chunks_bytes(dy, type_cols(dy), 1);
}

/* ---- CPU ---- */

static void dora_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *y = &args->in[Y], *bias = &args->in[BIAS];
    const float      *norm = args->in[NORM].data;
    int64_t           cols = type_cols(&y->type), step = rows_per_task(cols), end = min_i64(type_rows(&y->type), (task + 1) * step);
    float             scratch_y[TILE], scratch_m[TILE], scratch_bias[TILE], scratch_out[TILE];
    (void)worker;
    for (int64_t row = task * step; row < end; row++)
        for (int64_t at = 0; at < cols; at += TILE) {
            int64_t      n = min_i64(TILE, cols - at);
            const float *in = tile_load(y, row * cols + at, n, scratch_y), *m = tile_load(&args->in[M], at, n, scratch_m);
            const float *add = bias->data ? tile_load(bias, at, n, scratch_bias) : NULL;
            float       *out = tile_result(&args->out[0], row * cols + at, scratch_out);
            for (int64_t c = 0; c < n; c++) out[c] = in[c] * (m[c] / norm[at + c]);
            for (int64_t c = 0; add && c < n; c++) out[c] += add[c];
            tile_store(&args->out[0], row * cols + at, out, n);
        }
}

static Status dora_cpu(const KernelArgs *args)
{
    const TensorType *y = &args->in[Y].type;
    pool_run(args->pool, div_up(type_rows(y), rows_per_task(type_cols(y))), dora_task, (void *)args);
    return OK;
}

static void dora_dm_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *dy = &args->in[IN_DY], *y = &args->in[IN_Y];
    const float      *norm = args->in[IN_NORM].data;
    int64_t           rows = type_rows(&dy->type), cols = type_cols(&dy->type), step = chunk_rows(rows);
    int64_t           end = min_i64(rows, (task + 1) * step);
    float            *sum = (float *)args->workspace + task * cols, scratch_dy[TILE], scratch_y[TILE];
    (void)worker;
    memset(sum, 0, (size_t)cols * sizeof(float));
    for (int64_t row = task * step; row < end; row++)
        for (int64_t at = 0; at < cols; at += TILE) {
            int64_t      n = min_i64(TILE, cols - at);
            const float *g = tile_load(dy, row * cols + at, n, scratch_dy), *v = tile_load(y, row * cols + at, n, scratch_y);
            for (int64_t c = 0; c < n; c++) sum[at + c] += g[c] * v[c];
        }
    for (int64_t c = 0; c < cols; c++) sum[c] /= norm[c];
}

static Status dora_dm_cpu(const KernelArgs *args)
{
    int64_t chunks = num_chunks(type_rows(&args->in[IN_DY].type)), cols = type_cols(&args->in[IN_DY].type);
    pool_run(args->pool, chunks, dora_dm_task, (void *)args);
    chunks_combine(&args->out[0], args->accumulate & 1, args->workspace, chunks, cols, cols);
    return OK;
}

const OpDef op_dora = {
    .id = OP_DORA,
    .name = "dora",
    .synopsis = "out[...,c] = y[...,c] m[c] / norm[c] + bias[c]",
    .num_in = 4,
    .num_out = 1,
    .min_in = 3,
    .inplace = 1u << Y,
    .by_row = 1u << Y,
    .params = 1u << M | 1u << BIAS,
    .constants = 1u << NORM,
    .holds = {[NORM] = HOLDS_POSITIVE},
    .infer = dora_infer,
    .backward = dora_backward,
    .cost = dora_cost,
    .cpu = {{DT_SET_DECODE, dora_cpu, "reference"}},
    .samples = "[5,7], [7], [7], [7]\n"
               "[2,30,1100], [1100], [1100]\n"
               "[9,64], [64], [64] rows_alone\n",
    .large = "[512,3072], [3072], [3072], [3072]\n",
};

const OpDef op_dora_dm = {
    .id = OP_DORA_DM,
    .name = "dora_dm",
    .synopsis = "dm = sum over rows of dy y / norm",
    .num_in = 4,
    .num_out = 1,
    .min_in = 3,
    .alias = {{.out = 0, .in = IN_ACC, .accumulate = true}},
    .num_alias = 1,
    .holds = {[IN_NORM] = HOLDS_POSITIVE},
    .attrs_size = sizeof(ColSumAttrs),
    .attrs = dora_dm_attrs,
    .infer = dora_dm_infer,
    .cost = dora_dm_cost,
    .workspace = dora_dm_workspace,
    .gpu_workspace = dora_dm_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, dora_dm_cpu, "reference"}},
    .samples = "[5,7], [5,7], [7], [7]\n"
               "[2,150,1100], [2,150,1100], [1100]\n"
               "[70,9], [70,9], [9] {dw_dtype=f32}\n",
    .large = "[4096,1024], [4096,1024], [1024]\n",
};
