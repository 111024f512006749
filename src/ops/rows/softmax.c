/* softmax and log_softmax over the last dim. Rows are read three times: for the largest element, the sum of exponentials, the result.
 * log_softmax is f32 unless attribute dtype says another: logs of probabilities need more bits than bf16 has.
 *
 * softmax_bwd: dx = y (dy - sum of dy y). log_softmax_bwd: dx = dy - e^y sum of dy. */
#include "ops/infer.h"

static const AttrDef softmax_attrs[] = {ATTR_DTYPE(SoftmaxAttrs, dtype), {0}};

static bool is_log(const Node *node)
{
    return node->op->id == OP_LOG_SOFTMAX;
}

static Status softmax_dtype(const Node *node, DType own, DType *out)
{
    const SoftmaxAttrs *attrs = node->attrs;
    *out = attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : own;
    FAIL_IF(attrs->dtype && !(DT_SET(*out) & DT_SET_FLOAT), ERR_INVALID, "attribute dtype is %s, expected f32 or bf16",
            dtype_info(*out)->name);
    return OK;
}

/* x (...,V) -> y. */
static Status softmax_infer(Node *node)
{
    DType dtype;
    TRY(infer_float(node, 0, "x", 1));
    TRY(softmax_dtype(node, is_log(node) ? DT_F32 : node->in[0]->type.dtype, &dtype));
    node->out[0]->type = type_as(&node->in[0]->type, dtype);
    return OK;
}

/* dy, y (...,V) -> dx. */
static Status softmax_bwd_infer(Node *node)
{
    DType dtype;
    TRY(infer_float(node, 0, "dy", 1));
    TRY(infer_like(node, 1, "y", DT_SET_FLOAT, &node->in[0]->type));
    TRY(softmax_dtype(node, node->in[0]->type.dtype, &dtype));
    node->out[0]->type = type_as(&node->in[0]->type, dtype);
    return OK;
}

static Status softmax_backward(GradBuilder *grad, const Node *node)
{
    SoftmaxAttrs attrs = {.dtype = DTYPE_TO_ATTR(node->in[0]->type.dtype)};
    Value       *in[] = {grad_of(grad, node->out[0]), node->out[0]}, *dx;
    TRY(grad_emit(grad, is_log(node) ? OP_LOG_SOFTMAX_BWD : OP_SOFTMAX_BWD, &attrs, in, 2, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static OpCost softmax_cost(const Node *node)
{
    return cost_streaming(node, 20.0 * (double)type_numel(&node->out[0]->type));
}

/* ---- kernels ---- */

typedef void (*RowFn)(const KernelArgs *args, int64_t row, int64_t cols);

typedef struct SoftmaxJob {
    const KernelArgs *args;
    RowFn             row;
} SoftmaxJob;

static void softmax_task(void *context, int64_t task, int worker)
{
    const SoftmaxJob *job = context;
    const TensorType *y = &job->args->out[0].type;
    int64_t           cols = type_cols(y), step = rows_per_task(cols), end = min_i64(type_rows(y), (task + 1) * step);
    (void)worker;
    for (int64_t row = task * step; row < end; row++) job->row(job->args, row, cols);
}

static Status softmax_run(const KernelArgs *args, RowFn row)
{
    SoftmaxJob        job = {args, row};
    const TensorType *y = &args->out[0].type;
    pool_run(args->pool, div_up(type_rows(y), rows_per_task(type_cols(y))), softmax_task, &job);
    return OK;
}

/* The largest element of a row of x, and the sum of e^(x - largest). */
static void row_sums(const TensorView *x, int64_t row, int64_t cols, float *most, float *sum)
{
    float scratch[TILE], tile[TILE];
    *most = -INFINITY;
    *sum = 0;
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t n = min_i64(TILE, cols - c);
        *most = fmaxf(*most, vec_max(tile_load(x, row * cols + c, n, scratch), n));
    }
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t n = min_i64(TILE, cols - c);
        *sum += vec_exp_sum(tile, tile_load(x, row * cols + c, n, scratch), *most, n);
    }
}

static void softmax_row(const KernelArgs *args, int64_t row, int64_t cols)
{
    float most, sum, scratch[TILE], scratch_y[TILE];
    row_sums(&args->in[0], row, cols, &most, &sum);
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *x = tile_load(&args->in[0], row * cols + c, n, scratch);
        float       *y = tile_result(&args->out[0], row * cols + c, scratch_y);
        VEC_LOOP
        for (int64_t i = 0; i < n; i++) y[i] = vec_expf(x[i] - most) / sum;
        tile_store(&args->out[0], row * cols + c, y, n);
    }
}

static void log_softmax_row(const KernelArgs *args, int64_t row, int64_t cols)
{
    float most, sum, scratch[TILE], scratch_y[TILE];
    row_sums(&args->in[0], row, cols, &most, &sum);
    float log_sum = logf(sum);
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *x = tile_load(&args->in[0], row * cols + c, n, scratch);
        float       *y = tile_result(&args->out[0], row * cols + c, scratch_y);
        VEC_LOOP
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - most) - log_sum;
        tile_store(&args->out[0], row * cols + c, y, n);
    }
}

static void softmax_bwd_row(const KernelArgs *args, int64_t row, int64_t cols)
{
    float sum = 0, scratch_dy[TILE], scratch[TILE], scratch_dx[TILE];
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t n = min_i64(TILE, cols - c);
        sum += vec_dot(tile_load(&args->in[0], row * cols + c, n, scratch_dy), tile_load(&args->in[1], row * cols + c, n, scratch), n);
    }
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *dy = tile_load(&args->in[0], row * cols + c, n, scratch_dy), *y = tile_load(&args->in[1], row * cols + c, n, scratch);
        float       *dx = tile_result(&args->out[0], row * cols + c, scratch_dx);
        VEC_LOOP
        for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
        tile_store(&args->out[0], row * cols + c, dx, n);
    }
}

static void log_softmax_bwd_row(const KernelArgs *args, int64_t row, int64_t cols)
{
    float sum = 0, scratch_dy[TILE], scratch[TILE], scratch_dx[TILE];
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t n = min_i64(TILE, cols - c);
        sum += vec_sum(tile_load(&args->in[0], row * cols + c, n, scratch_dy), n);
    }
    for (int64_t c = 0; c < cols; c += TILE) {
        int64_t      n = min_i64(TILE, cols - c);
        const float *dy = tile_load(&args->in[0], row * cols + c, n, scratch_dy), *y = tile_load(&args->in[1], row * cols + c, n, scratch);
        float       *dx = tile_result(&args->out[0], row * cols + c, scratch_dx);
        VEC_LOOP
        for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - vec_expf(y[i]) * sum;
        tile_store(&args->out[0], row * cols + c, dx, n);
    }
}

static Status softmax_cpu(const KernelArgs *args)
{
    return softmax_run(args, softmax_row);
}

static Status log_softmax_cpu(const KernelArgs *args)
{
    return softmax_run(args, log_softmax_row);
}

static Status softmax_bwd_cpu(const KernelArgs *args)
{
    return softmax_run(args, softmax_bwd_row);
}

static Status log_softmax_bwd_cpu(const KernelArgs *args)
{
    return softmax_run(args, log_softmax_bwd_row);
}

/* ---- descriptors ---- */

static const char softmax_samples[] = "[5,7]\n"
                                      "[2,3,2100]\n"
                                      "[200,3]\n";

static const char softmax_bwd_samples[] = "[5,7], [5,7]\n"
                                          "[2,3,2100], [2,3,2100]\n"
                                          "[20,24], [20,24] {dtype=bf16}\n";

/* Some threads' pieces are all -inf in the last two samples: in the first of these without 16-byte packs, in the second with them. */
static const char softmax_large_samples[] = "[70,32000]\n"
                                            /* results that differ in the last bit of f32 may round to neighbouring bf16 values */
                                            "[70,4096] {dtype=bf16} tolerance=0.00390625\n"
                                            "[7,1001] masked=70\n"
                                            "[7,4096] masked=300\n";

static const char softmax_bwd_large_samples[] = "[70,32000], [70,32000]\n";

#define SOFTMAX(op_id, op_name, text, inputs, list, large_list, ...) \
    .id = op_id, .name = op_name, .synopsis = text, .num_in = inputs, .num_out = 1, .min_in = inputs, .inplace = 1u << 0, \
    .by_row = (1u << inputs) - 1, .attrs_size = sizeof(SoftmaxAttrs), .attrs = softmax_attrs, .cost = softmax_cost, .samples = list, \
    .large = large_list, __VA_ARGS__

const OpDef op_softmax = {
    SOFTMAX(OP_SOFTMAX, "softmax", "y = e^x / sum of e^x over the last dim", 1, softmax_samples, softmax_large_samples,
            .infer = softmax_infer, .backward = softmax_backward, .cpu = {{DT_SET_DECODE, softmax_cpu, "reference"}}),
};

const OpDef op_log_softmax = {
    SOFTMAX(OP_LOG_SOFTMAX, "log_softmax", "y = x - ln(sum of e^x over the last dim)", 1, softmax_samples, softmax_large_samples,
            .infer = softmax_infer, .backward = softmax_backward, .cpu = {{DT_SET_DECODE, log_softmax_cpu, "reference"}}),
};

const OpDef op_softmax_bwd = {
    SOFTMAX(OP_SOFTMAX_BWD, "softmax_bwd", "dx = y (dy - sum of dy y)", 2, softmax_bwd_samples, softmax_bwd_large_samples,
            .infer = softmax_bwd_infer, .cpu = {{DT_SET_FLOAT, softmax_bwd_cpu, "reference"}}),
};

const OpDef op_log_softmax_bwd = {
    SOFTMAX(OP_LOG_SOFTMAX_BWD, "log_softmax_bwd", "dx = dy - e^y sum of dy", 2, softmax_bwd_samples, softmax_bwd_large_samples,
            .infer = softmax_bwd_infer, .cpu = {{DT_SET_FLOAT, log_softmax_bwd_cpu, "reference"}}),
};
