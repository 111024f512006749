/* sum, mean, max: reduce one dim, which stays with size 1. Sums are fp32, in a fixed order. max also returns the index of the first of the
 * largest elements, which alone gets the gradient. expand, the inverse: repeats a dim of size 1. */
#include "ops/rows/reduce.h"

#include "ops/infer.h"

static const AttrDef reduce_attrs[] = {ATTR_INT(ReduceAttrs, dim, -1), ATTR_DTYPE(ReduceAttrs, dtype), {0}};
static const AttrDef max_attrs[] = {ATTR_INT(ReduceAttrs, dim, -1), {0}};
static const AttrDef expand_attrs[] = {ATTR_INT(ReduceAttrs, dim, -1), ATTR_INT(ReduceAttrs, size, 1), ATTR_DTYPE(ReduceAttrs, dtype), {0}};

static int reduce_dim(const Node *node)
{
    return dim_of(((const ReduceAttrs *)node->attrs)->dim, node->in[0]->type.ndim);
}

static Status check_dim(const Node *node)
{
    int64_t dim = ((const ReduceAttrs *)node->attrs)->dim, ndim = node->in[0]->type.ndim;
    FAIL_IF(dim < -ndim || dim >= ndim, ERR_INVALID, "attribute dim is %lld, expected %lld to %lld, as x has %lld dims", (long long)dim,
            (long long)-ndim, (long long)(ndim - 1), (long long)ndim);
    return OK;
}

/* Sets *out to attribute dtype, or to `own` if the attribute isn't given. */
static Status reduce_dtype(const Node *node, DType own, DType *out)
{
    const ReduceAttrs *attrs = node->attrs;
    *out = attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : own;
    FAIL_IF(attrs->dtype && !(DT_SET(*out) & DT_SET_FLOAT), ERR_INVALID, "attribute dtype is %s, expected f32 or bf16",
            dtype_info(*out)->name);
    return OK;
}

/* x (...) -> y with the reduced dim of size 1, f32 unless attribute dtype says another. */
static Status sum_infer(Node *node)
{
    DType dtype;
    TRY(infer_float(node, 0, "x", 1));
    TRY(check_dim(node));
    TRY(reduce_dtype(node, DT_F32, &dtype));
    node->out[0]->type = type_as(&node->in[0]->type, dtype);
    node->out[0]->type.dim[reduce_dim(node)] = 1;
    return OK;
}

/* x (...) -> y of x's dtype, ids i32, both with the reduced dim of size 1. */
static Status max_infer(Node *node)
{
    TRY(infer_float(node, 0, "x", 1));
    TRY(check_dim(node));
    FAIL_IF(node->in[0]->type.dim[reduce_dim(node)] > INT32_MAX, ERR_UNSUPPORTED, "more than 2^31 - 1 numbers in a dim");
    node->out[0]->type = node->in[0]->type;
    node->out[0]->type.dim[reduce_dim(node)] = 1;
    node->out[1]->type = type_as(&node->out[0]->type, DT_I32);
    return OK;
}

/* x with a dim of size 1 -> y, where the dim has `size` indexes, of x's dtype unless attribute dtype says another. */
static Status expand_infer(Node *node)
{
    const ReduceAttrs *attrs = node->attrs;
    DType              dtype;
    TRY(infer_float(node, 0, "x", 1));
    TRY(check_dim(node));
    TRY(reduce_dtype(node, node->in[0]->type.dtype, &dtype));
    const TensorType *x = &node->in[0]->type;
    char              text[64];
    FAIL_IF(x->dim[reduce_dim(node)] != 1, ERR_INVALID, "x is %s, expected 1 as dim %d", type_text(x, text), reduce_dim(node));
    FAIL_IF(attrs->size < 1, ERR_INVALID, "attribute size is %lld, expected 1 or more", (long long)attrs->size);
    node->out[0]->type = type_as(x, dtype);
    node->out[0]->type.dim[reduce_dim(node)] = attrs->size;
    return OK;
}

/* dx is dy repeated over the dim; for a mean it is also divided by the dim's size. */
static Status sum_backward(GradBuilder *grad, const Node *node)
{
    const TensorType *x = &node->in[0]->type;
    int64_t           size = x->dim[reduce_dim(node)];
    ReduceAttrs       attrs = {.dim = reduce_dim(node), .size = size, .dtype = DTYPE_TO_ATTR(x->dtype)};
    ScaleAttrs        scale = {.by = 1 / (double)size};
    Value            *d = grad_of(grad, node->out[0]);
    if (node->op->id == OP_MEAN) TRY(grad_emit(grad, OP_SCALE, &scale, &d, 1, ~0u, &d));
    TRY(grad_emit(grad, OP_EXPAND, &attrs, &d, 1, ~0u, &d));
    return grad_add(grad, node->in[0], d);
}

static Status max_backward(GradBuilder *grad, const Node *node)
{
    const TensorType *x = &node->in[0]->type;
    PickBwdAttrs      attrs = {.dim = reduce_dim(node), .size = x->dim[reduce_dim(node)], .dtype = DTYPE_TO_ATTR(x->dtype)};
    Value            *in[] = {grad_of(grad, node->out[0]), node->out[1]}, *dx;
    TRY(grad_emit(grad, OP_PICK_BWD, &attrs, in, 2, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static Status expand_backward(GradBuilder *grad, const Node *node)
{
    ReduceAttrs attrs = {.dim = reduce_dim(node), .dtype = DTYPE_TO_ATTR(node->in[0]->type.dtype)};
    Value      *d = grad_of(grad, node->out[0]);
    TRY(grad_emit(grad, OP_SUM, &attrs, &d, 1, ~0u, &d));
    return grad_add(grad, node->in[0], d);
}

static OpCost reduce_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->in[0]->type));
}

/* ---- kernels ---- */

static Lines lines_of(const KernelArgs *args, const TensorType *type)
{
    return lines_around(type, dim_of(((const ReduceAttrs *)args->attrs)->dim, type->ndim));
}

/* sum[0, n) = the sums of n neighbouring lines (inner indexes j, j + 1, ..); the first line begins at element `at`. */
static void sum_lines(const TensorView *x, Lines lines, int64_t at, int64_t n, float *sum)
{
    memset(sum, 0, (size_t)n * sizeof(float));
    if (lines.inner == 1)
        for (int64_t i = 0; i < lines.count; i += TILE)
            sum[0] += VEC_OF_ANY(x->type.dtype, vec_row_sum, vec_at(x->data, x->type.dtype, at + i), min_i64(TILE, lines.count - i));
    else
        for (int64_t i = 0; i < lines.count; i++)
            VEC_OF_ANY(x->type.dtype, vec_sum_row, sum, vec_at(x->data, x->type.dtype, at + i * lines.inner), n);
}

/* Finds a line's largest element and its index. A NaN is larger than any number, as in PyTorch; of equal elements the first counts. */
static void max_line(const TensorView *x, Lines lines, int64_t at, float *most, int32_t *place)
{
    *most = vec_get(x->data, x->type.dtype, at);
    *place = 0;
    for (int64_t i = 1; i < lines.count && *most == *most; i++) {
        float v = vec_get(x->data, x->type.dtype, at + i * lines.inner);
        if (v <= *most) continue;
        *most = v;
        *place = (int32_t)i;
    }
}

enum { LINES_OF_SUM = 256 };

/* The number of tasks: each has LINES_OF_SUM neighbouring lines, or a single line if the dim is the last. */
static int64_t line_groups(Lines lines)
{
    return lines.outer * div_up(lines.inner, LINES_OF_SUM);
}

static void sum_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    Lines             lines = lines_of(args, &args->in[0].type);
    int64_t           groups = div_up(lines.inner, LINES_OF_SUM), outer = task / groups, first = task % groups * LINES_OF_SUM;
    int64_t           n = min_i64(LINES_OF_SUM, lines.inner - first);
    float             sum[LINES_OF_SUM];
    (void)worker;
    sum_lines(&args->in[0], lines, outer * lines.count * lines.inner + first, n, sum);
    tile_store(&args->out[0], outer * lines.inner + first, sum, n);
}

static void mean_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    Lines             lines = lines_of(args, &args->in[0].type);
    int64_t           groups = div_up(lines.inner, LINES_OF_SUM), outer = task / groups, first = task % groups * LINES_OF_SUM;
    int64_t           n = min_i64(LINES_OF_SUM, lines.inner - first);
    float             sum[LINES_OF_SUM];
    (void)worker;
    sum_lines(&args->in[0], lines, outer * lines.count * lines.inner + first, n, sum);
    for (int64_t i = 0; i < n; i++) sum[i] /= (float)lines.count;
    tile_store(&args->out[0], outer * lines.inner + first, sum, n);
}

static void max_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    Lines             lines = lines_of(args, &args->in[0].type);
    int64_t           groups = div_up(lines.inner, LINES_OF_SUM), outer = task / groups, first = task % groups * LINES_OF_SUM;
    (void)worker;
    for (int64_t j = first; j < min_i64(lines.inner, first + LINES_OF_SUM); j++) {
        float   most;
        int32_t place;
        max_line(&args->in[0], lines, outer * lines.count * lines.inner + j, &most, &place);
        if (args->out[0].data) vec_set(args->out[0].data, args->out[0].type.dtype, outer * lines.inner + j, most);
        if (args->out[1].data) ((int32_t *)args->out[1].data)[outer * lines.inner + j] = place;
    }
}

static void expand_task(void *context, int64_t task, int worker)
{
    const KernelArgs *args = context;
    const TensorView *x = &args->in[0], *y = &args->out[0];
    Lines             lines = lines_of(args, &y->type);
    float             scratch[TILE];
    (void)worker;
    if (lines.inner > 1)
        for (int64_t i = 0; i < lines.count; i++) tile_copy(y, (task * lines.count + i) * lines.inner, x, task * lines.inner, lines.inner);
    float value = vec_get(x->data, x->type.dtype, task * lines.inner);
    for (int64_t i = 0; i < TILE && lines.inner == 1; i++) scratch[i] = value;
    for (int64_t at = 0; at < lines.count && lines.inner == 1; at += TILE) {
        TensorView ones = {scratch, {.dtype = DT_F32}};
        tile_copy(y, task * lines.count + at, &ones, 0, min_i64(TILE, lines.count - at));
    }
}

static Status sum_cpu(const KernelArgs *args)
{
    pool_run(args->pool, line_groups(lines_of(args, &args->in[0].type)), sum_task, (void *)args);
    return OK;
}

static Status mean_cpu(const KernelArgs *args)
{
    pool_run(args->pool, line_groups(lines_of(args, &args->in[0].type)), mean_task, (void *)args);
    return OK;
}

static Status max_cpu(const KernelArgs *args)
{
    pool_run(args->pool, line_groups(lines_of(args, &args->in[0].type)), max_task, (void *)args);
    return OK;
}

static Status expand_cpu(const KernelArgs *args)
{
    pool_run(args->pool, lines_of(args, &args->out[0].type).outer, expand_task, (void *)args);
    return OK;
}

/* ---- descriptors ---- */

static const char sum_samples[] = "[5,7]\n"
                                  "[2,3,2100]\n"
                                  "[3,37,300] {dim=1}\n"
                                  "[1500] {dim=0}\n";

static const char mean_samples[] = "[5,7]\n"
                                   "[2,3,2100]\n"
                                   "[3,37,300] {dim=1}\n";

static const char max_samples[] = "[5,7]\n"
                                  "[2,3,2100]\n"
                                  "[3,7,2] {dim=1}\n";

static const char reduce_large_samples[] = "[70,32000]\n"
                                           "[4096,1024] {dim=0}\n"
                                           "[70,32001]\n"
                                           "[3,5,300] {dim=1}\n";

static const char expand_samples[] = "[5,1] {size=1300}\n"
                                     "[2,1,37] {dim=1, size=5}\n"
                                     "[5,1] {size=7, dtype=f32}\n";

#define REDUCE(op_id, op_name, text, list, ...) \
    .id = op_id, .name = op_name, .synopsis = text, .num_in = 1, .min_in = 1, .by_row = 1u << 0, .row_dims = reduce_dim, \
    .attrs_size = sizeof(ReduceAttrs), .cost = reduce_cost, .samples = list, __VA_ARGS__

const OpDef op_sum = {
    REDUCE(OP_SUM, "sum", "y = the sum over a dim", sum_samples, .num_out = 1, .attrs = reduce_attrs, .infer = sum_infer,
           .backward = sum_backward, .cpu = {{DT_SET_DECODE, sum_cpu, "reference"}}, .large = reduce_large_samples),
};

const OpDef op_mean = {
    REDUCE(OP_MEAN, "mean", "y = the mean over a dim", mean_samples, .num_out = 1, .attrs = reduce_attrs, .infer = sum_infer,
           .backward = sum_backward, .cpu = {{DT_SET_DECODE, mean_cpu, "reference"}}, .large = reduce_large_samples),
};

const OpDef op_max = {
    REDUCE(OP_MAX, "max", "y = the largest along a dim, ids = its index; of equal elements the first counts, and alone gets the gradient",
           max_samples, .num_out = 2, .attrs = max_attrs, .infer = max_infer, .backward = max_backward,
           .cpu = {{DT_SET_DECODE, max_cpu, "reference"}}, .large = reduce_large_samples),
};

const OpDef op_expand = {
    REDUCE(OP_EXPAND, "expand", "y = x with a dim of size 1 repeated", expand_samples, .num_out = 1, .attrs = expand_attrs,
           .infer = expand_infer, .backward = expand_backward, .cpu = {{DT_SET_DECODE, expand_cpu, "reference"}}),
};
