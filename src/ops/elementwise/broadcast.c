/* Element-wise ops of two or three inputs that broadcast: sub, div, minimum, maximum and its gradient, comparisons, where. The result
 * has a's dtype. Also what other element-wise ops share. */
#include "ops/elementwise/elementwise.h"

/* ---- types and gradients ---- */

Status infer_broadcast(const Node *node, int count, const char *const *names, TensorType *y)
{
    static const TensorType one = {.ndim = 1, .dim = {1}};
    y->ndim = 1;
    y->dim[0] = 1;
    for (int k = 0; k < count; k++) {
        if (!node->in[k]) continue;
        TRY(infer_float(node, k, names[k], 1));
        const TensorType *in = &node->in[k]->type;
        bool              fits = in->ndim == y->ndim;
        char              got[64], want[64];
        if (type_same_dims(in, &one)) continue;
        if (type_same_dims(y, &one)) {
            *y = type_as(in, y->dtype);
            continue;
        }
        for (int d = 0; d < y->ndim && fits; d++) {
            fits = in->dim[d] == y->dim[d] || in->dim[d] == 1 || y->dim[d] == 1;
            y->dim[d] = max_i64(y->dim[d], in->dim[d]);
        }
        FAIL_IF(!fits, ERR_INVALID, "%s is %s, beside %s; expected as many dims, each the same or 1, or one number (1)", names[k],
                type_text(in, got), type_text(y, want));
    }
    return OK;
}

Status grad_add_broadcast(GradBuilder *grad, Value *value, Value *d)
{
    if (!d || !grad_wanted(grad, value)) return OK;
    const TensorType *type = &value->type;
    bool              same = type->ndim == d->type.ndim;
    for (int k = d->type.ndim - 1; k >= 0; k--) {
        ReduceAttrs attrs = {.dim = k, .dtype = DTYPE_TO_ATTR(DT_F32)};
        if (d->type.dim[k] == 1 || (same && type->dim[k] == d->type.dim[k])) continue;
        TRY(grad_emit(grad, OP_SUM, &attrs, &d, 1, ~0u, &d));
    }
    ReshapeAttrs one = {.ndim = 1, .d0 = 1};
    if (!same) TRY(grad_emit(grad, OP_RESHAPE, &one, &d, 1, ~0u, &d));
    CastAttrs cast = {.dtype = DTYPE_TO_ATTR(type->dtype)};
    if (d->type.dtype != type->dtype) TRY(grad_emit(grad, OP_CAST, &cast, &d, 1, ~0u, &d));
    return grad_add(grad, value, d);
}

Status unary_infer(Node *node)
{
    int last = node->num_in - 1;
    TRY(infer_float(node, last, "x", 1));
    if (last) TRY(infer_like(node, 0, "dy", DT_SET_FLOAT, &node->in[last]->type));
    node->out[0]->type = node->in[last]->type;
    return OK;
}

Status pair_infer(Node *node)
{
    static const char *const names[] = {"a", "b"};
    node->out[0]->type.dtype = node->in[0]->type.dtype;
    return infer_broadcast(node, 2, names, &node->out[0]->type);
}

static Status compare_infer(Node *node)
{
    TRY(pair_infer(node));
    node->out[0]->type.dtype = DT_F32;
    return OK;
}

/* cond f32, [a], [b] -> y of a's dtype, or b's if a is absent. */
static Status where_infer(Node *node)
{
    static const char *const names[] = {"cond", "a", "b"};
    const TensorType        *cond = &node->in[0]->type;
    FAIL_IF(!node->in[1] && !node->in[2], ERR_INVALID, "neither a nor b is there, expected one or both");
    TRY(infer_like(node, 0, "cond", DT_SET_F32, cond));
    node->out[0]->type.dtype = node->in[node->in[1] ? 1 : 2]->type.dtype;
    return infer_broadcast(node, 3, names, &node->out[0]->type);
}

/* dy, a, b -> da of dy's dims and dtype. */
static Status maximum_bwd_infer(Node *node)
{
    static const char *const names[] = {"dy", "a", "b"};
    node->out[0]->type.dtype = node->in[0]->type.dtype;
    return infer_broadcast(node, 3, names, &node->out[0]->type);
}

static Status sub_backward(GradBuilder *grad, const Node *node)
{
    static const ScaleAttrs minus = {.by = -1};
    Value                  *dy = grad_of(grad, node->out[0]), *db;
    TRY(grad_add_broadcast(grad, node->in[0], dy));
    if (!grad_wanted(grad, node->in[1])) return OK;
    TRY(grad_emit(grad, OP_SCALE, &minus, &dy, 1, ~0u, &db));
    return grad_add_broadcast(grad, node->in[1], db);
}

/* da = dy / b, db = -dy y / b. */
static Status div_backward(GradBuilder *grad, const Node *node)
{
    static const ScaleAttrs minus = {.by = -1};
    Value                  *in[] = {grad_of(grad, node->out[0]), node->in[1]}, *d;
    if (grad_wanted(grad, node->in[0])) {
        TRY(grad_emit(grad, OP_DIV, NULL, in, 2, ~0u, &d));
        TRY(grad_add_broadcast(grad, node->in[0], d));
    }
    if (!grad_wanted(grad, node->in[1])) return OK;
    Value *product[] = {in[0], node->out[0]};
    TRY(grad_emit(grad, OP_MUL, NULL, product, 2, ~0u, &in[0]));
    TRY(grad_emit(grad, OP_DIV, NULL, in, 2, ~0u, &d));
    TRY(grad_emit(grad, OP_SCALE, &minus, &d, 1, ~0u, &d));
    return grad_add_broadcast(grad, node->in[1], d);
}

static Status maximum_backward(GradBuilder *grad, const Node *node)
{
    MaximumAttrs attrs = {.least = node->op->id == OP_MINIMUM};
    for (int k = 0; k < 2; k++) {
        Value *in[] = {grad_of(grad, node->out[0]), node->in[k], node->in[1 - k]}, *d;
        if (!grad_wanted(grad, node->in[k])) continue;
        TRY(grad_emit(grad, OP_MAXIMUM_BWD, &attrs, in, 3, ~0u, &d));
        TRY(grad_add_broadcast(grad, node->in[k], d));
    }
    return OK;
}

static Status where_backward(GradBuilder *grad, const Node *node)
{
    for (int k = 1; k < 3; k++) {
        Value *in[] = {node->in[0], NULL, NULL}, *d;
        if (!grad_wanted(grad, node->in[k])) continue;
        in[k] = grad_of(grad, node->out[0]);
        TRY(grad_emit(grad, OP_WHERE, NULL, in, 3, ~0u, &d));
        TRY(grad_add_broadcast(grad, node->in[k], d));
    }
    return OK;
}

OpCost pair_cost(const Node *node)
{
    return cost_streaming(node, (double)type_numel(&node->out[0]->type));
}

/* ---- kernels ---- */

typedef struct BroadcastJob {
    const KernelArgs *args;
    Broadcast         plan;
    int64_t           rows, cols, rows_each, pieces; /* a task is rows_each rows, or a piece of one row */
    TileFn            tile;
    double            number;
} BroadcastJob;

const float *broadcast_load(const KernelArgs *args, const Broadcast *plan, int k, int64_t offset, int64_t at, int64_t count, float *scratch)
{
    const TensorView *in = &args->in[k];
    if (in->data && plan->step[k][plan->ndim - 1]) return tile_load(in, offset + at, count, scratch);
    float value = in->data ? vec_get(in->data, in->type.dtype, offset) : 0;
    for (int64_t i = 0; i < count; i++) scratch[i] = value;
    return scratch;
}

static void broadcast_row(const BroadcastJob *job, int64_t row, int64_t begin, int64_t end)
{
    const TensorView *y = &job->args->out[0];
    int64_t           offset[BROADCAST_MAX_IN];
    float             scratch[BROADCAST_MAX_IN][TILE], scratch_y[TILE];
    const float      *in[BROADCAST_MAX_IN] = {0};
    for (int k = 0; k < job->args->num_in; k++) offset[k] = broadcast_offset(&job->plan, k, row);
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t n = min_i64(TILE, end - at);
        float  *result = tile_result(y, row * job->cols + at, scratch_y);
        for (int k = 0; k < job->args->num_in; k++) in[k] = broadcast_load(job->args, &job->plan, k, offset[k], at, n, scratch[k]);
        job->tile(result, in, n, job->number);
        tile_store(y, row * job->cols + at, result, n);
    }
}

static void broadcast_task(void *context, int64_t task, int worker)
{
    const BroadcastJob *job = context;
    int64_t             first = task / job->pieces * job->rows_each, begin = task % job->pieces * ELEMENTS_PER_TASK;
    (void)worker;
    for (int64_t row = first; row < min_i64(job->rows, first + job->rows_each); row++)
        broadcast_row(job, row, begin, min_i64(job->cols, begin + ELEMENTS_PER_TASK));
}

void broadcast_cpu(const KernelArgs *args, TileFn tile, double number)
{
    BroadcastJob job = {.args = args, .plan = broadcast_plan(args), .tile = tile, .number = number};
    job.cols = job.plan.dim[job.plan.ndim - 1];
    job.rows = type_numel(&args->out[0].type) / job.cols;
    job.pieces = div_up(job.cols, ELEMENTS_PER_TASK);
    job.rows_each = rows_per_task(job.cols);
    pool_run(args->pool, div_up(job.rows, job.rows_each) * job.pieces, broadcast_task, &job);
}

TILE_OF(sub, a[i] - b[i])
TILE_OF(div, a[i] / b[i])
/* NaN if a or b is NaN. */
TILE_OF(minimum, a[i] < b[i] || a[i] != a[i] ? a[i] : b[i])
TILE_OF(maximum, a[i] > b[i] || a[i] != a[i] ? a[i] : b[i])
TILE_OF(ge, a[i] >= b[i] ? 1.0f : 0.0f)
TILE_OF(gt, a[i] > b[i] ? 1.0f : 0.0f)
TILE_OF(eq, a[i] == b[i] ? 1.0f : 0.0f)
TILE_OF(where, a[i] != 0 ? b[i] : c[i])

static inline float maximum_slope(float dy, float a, float b)
{
    float all = a > b ? dy : 0;
    return a == b ? 0.5f * dy : all;
}

/* number: not 0 for the gradient of minimum. */
static void maximum_bwd_tile(float *y, const float *const *in, int64_t count, double number)
{
    const float *a = in[number != 0 ? 2 : 1], *b = in[number != 0 ? 1 : 2];
    for (int64_t i = 0; i < count; i++) y[i] = maximum_slope(in[0][i], a[i], b[i]);
}

static Status maximum_bwd_cpu(const KernelArgs *args)
{
    broadcast_cpu(args, maximum_bwd_tile, ((const MaximumAttrs *)args->attrs)->least);
    return OK;
}

/* ---- descriptors ---- */

/* Equal dims; rows with one number each; single rows and numbers; a broadcast dim in the middle; 4 dims; dims that are merged. */
static const char pair_samples[] = "[9], [9]\n"
                                   "[3,5,1100], [3,5,1]\n"
                                   "[1,37], [21,37]\n"
                                   "[3,1,19], [1,7,19]\n"
                                   "[1], [2,5,7]\n"
                                   "[70,1037], [1]\n"
                                   "[2,3,1,5], [2,1,4,1]\n";

/* One number for each row. */
static const char pair_large_samples[] = "[1,70,32000], [1,70,1]\n"
                                         "[2,300,1024], [2,300,1024]\n";

static const AttrDef maximum_attrs[] = {ATTR_BOOL(MaximumAttrs, least, false), {0}};

#define PAIR(op_id, op_name, text, ...) \
    .id = op_id, .name = op_name, .synopsis = text, .num_in = 2, .num_out = 1, .min_in = 2, .inplace = 1u << 0 | 1u << 1, \
    .by_row = 1u << 0 | 1u << 1, .by_element = true, .cost = pair_cost, .samples = pair_samples, .large = pair_large_samples, __VA_ARGS__

const OpDef op_sub = {
    PAIR(OP_SUB, "sub", "y = a - b", .infer = pair_infer, .backward = sub_backward, .cpu = {{DT_SET_DECODE, sub_cpu, "reference"}},
         .tile = sub_tile),
};

const OpDef op_div = {
    PAIR(OP_DIV, "div", "y = a / b", .infer = pair_infer, .backward = div_backward, .cpu = {{DT_SET_DECODE, div_cpu, "reference"}},
         .tile = div_tile, .holds = {[1] = HOLDS_POSITIVE}),
};

const OpDef op_minimum = {
    PAIR(OP_MINIMUM, "minimum", "y = min(a, b); where they are equal, each gets half of the gradient", .infer = pair_infer,
         .backward = maximum_backward, .cpu = {{DT_SET_DECODE, minimum_cpu, "reference"}}, .tile = minimum_tile,
         .holds = {HOLDS_WHOLE, HOLDS_HALF}),
};

const OpDef op_maximum = {
    PAIR(OP_MAXIMUM, "maximum", "y = max(a, b); where they are equal, each gets half of the gradient", .infer = pair_infer,
         .backward = maximum_backward, .cpu = {{DT_SET_DECODE, maximum_cpu, "reference"}}, .tile = maximum_tile,
         .holds = {HOLDS_WHOLE, HOLDS_HALF}),
};

const OpDef op_ge = {
    PAIR(OP_GE, "ge", "y = 1 where a >= b, else 0", .flags = OP_STOPS, .infer = compare_infer,
         .cpu = {{DT_SET_DECODE, ge_cpu, "reference"}}, .tile = ge_tile, .holds = {HOLDS_WHOLE, HOLDS_WHOLE}),
};

const OpDef op_gt = {
    PAIR(OP_GT, "gt", "y = 1 where a > b, else 0", .flags = OP_STOPS, .infer = compare_infer, .cpu = {{DT_SET_DECODE, gt_cpu, "reference"}},
         .tile = gt_tile, .holds = {HOLDS_WHOLE, HOLDS_WHOLE}),
};

const OpDef op_eq = {
    PAIR(OP_EQ, "eq", "y = 1 where a = b, else 0", .flags = OP_STOPS, .infer = compare_infer, .cpu = {{DT_SET_DECODE, eq_cpu, "reference"}},
         .tile = eq_tile, .holds = {HOLDS_WHOLE, HOLDS_WHOLE}),
};

const OpDef op_where = {
    .id = OP_WHERE,
    .name = "where",
    .synopsis = "y = a where cond isn't 0, else b; an absent operand is 0. An element that isn't chosen affects neither value "
                "nor gradient, even if it is NaN",
    .num_in = 3,
    .num_out = 1,
    .min_in = 1,
    .inplace = 1u << 0 | 1u << 1 | 1u << 2,
    .by_row = 1u << 0 | 1u << 1 | 1u << 2,
    .by_element = true,
    .infer = where_infer,
    .backward = where_backward,
    .cost = pair_cost,
    .cpu = {{DT_SET_DECODE, where_cpu, "reference"}},
    .tile = where_tile,
    .holds = {[0] = HOLDS_MASK},
    .constants = 1u << 0,
    .samples = "[9], [9], [9]\n"
               "[3,5,1], [3,5,37], [1]\n"
               "[70,1037], [1,1037], [70,1]\n"
               "[5,7], _, [5,7]\n"
               "[5,7], [5,7]\n",
};

const OpDef op_maximum_bwd = {
    .id = OP_MAXIMUM_BWD,
    .name = "maximum_bwd",
    .synopsis = "da = dy where a > b, dy / 2 where a = b, else 0; least: where a < b",
    .num_in = 3,
    .num_out = 1,
    .min_in = 3,
    .inplace = 1u << 0,
    .by_row = 1u << 0 | 1u << 1 | 1u << 2,
    .by_element = true,
    .attrs_size = sizeof(MaximumAttrs),
    .attrs = maximum_attrs,
    .infer = maximum_bwd_infer,
    .cost = pair_cost,
    .cpu = {{DT_SET_FLOAT, maximum_bwd_cpu, "reference"}},
    .tile = maximum_bwd_tile,
    .holds = {[1] = HOLDS_WHOLE, [2] = HOLDS_WHOLE},
    .samples = "[9], [9], [9]\n"
               "[70,1037], [70,1037], [70,1] {least=true}\n"
               "[3,5,37], [1], [1,5,37]\n",
};
