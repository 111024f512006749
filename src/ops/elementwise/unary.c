/* Functions of each element of one tensor: exp, log, sqrt, tanh, sigmoid, silu, log_sigmoid. y has x's dtype. Gradients of the first
 * four are products and quotients with y or x; the others have an op of their own. */
#include "ops/elementwise/elementwise.h"

static OpCost unary_cost(const Node *node)
{
    return cost_streaming(node, 20.0 * (double)type_numel(&node->out[0]->type));
}

/* Emits dx = by * op(dy, beside). */
static Status emit_dx(GradBuilder *grad, const Node *node, int op, const void *attrs, Value *beside, double by)
{
    ScaleAttrs scale = {.by = by};
    Value     *in[] = {grad_of(grad, node->out[0]), beside}, *dx;
    TRY(grad_emit(grad, op, attrs, in, 2, ~0u, &dx));
    if (by != 1) TRY(grad_emit(grad, OP_SCALE, &scale, &dx, 1, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static Status exp_backward(GradBuilder *grad, const Node *node)
{
    return emit_dx(grad, node, OP_MUL, NULL, node->out[0], 1);
}

static Status log_backward(GradBuilder *grad, const Node *node)
{
    return emit_dx(grad, node, OP_DIV, NULL, node->in[0], 1);
}

static Status sqrt_backward(GradBuilder *grad, const Node *node)
{
    return emit_dx(grad, node, OP_DIV, NULL, node->out[0], 0.5);
}

static Status tanh_backward(GradBuilder *grad, const Node *node)
{
    static const SoftcapAttrs one = {.cap = 1};
    return emit_dx(grad, node, OP_SOFTCAP_BWD, &one, node->out[0], 1);
}

static Status sigmoid_backward(GradBuilder *grad, const Node *node)
{
    return emit_dx(grad, node, OP_SIGMOID_BWD, NULL, node->out[0], 1);
}

static Status silu_backward(GradBuilder *grad, const Node *node)
{
    return emit_dx(grad, node, OP_SILU_BWD, NULL, node->in[0], 1);
}

static Status log_sigmoid_backward(GradBuilder *grad, const Node *node)
{
    return emit_dx(grad, node, OP_LOG_SIGMOID_BWD, NULL, node->in[0], 1);
}

/* ---- kernels ---- */

static inline float silu_slope(float x)
{
    float s = vec_sigmoid(x);
    return s + x * s * (1.0f - s);
}

TILE_OF(exp, vec_expf(a[i]))
TILE_OF(log, logf(a[i]))
TILE_OF(sqrt, sqrtf(a[i]))
TILE_OF(tanh, vec_tanhf(a[i]))
TILE_OF(sigmoid, vec_sigmoid(a[i]))
TILE_OF(silu, a[i] * vec_sigmoid(a[i]))
/* The exponential is of a negative number or 0, so it can't overflow, and small results stay accurate. */
TILE_OF(log_sigmoid, (a[i] < 0 ? a[i] : 0.0f) - log1pf(vec_expf(-fabsf(a[i]))))
TILE_OF(sigmoid_bwd, a[i] * b[i] * (1.0f - b[i]))
TILE_OF(silu_bwd, a[i] * silu_slope(b[i]))
TILE_OF(log_sigmoid_bwd, a[i] * vec_sigmoid(-b[i]))

/* ---- descriptors ---- */

static const char unary_samples[] = "[9]\n"
                                    "[3,35,333]\n";

static const char unary_bwd_samples[] = "[9], [9]\n"
                                        "[3,35,333], [3,35,333]\n";

static const char unary_large_samples[] = "[70,32000]\n";

static const char unary_bwd_large_samples[] = "[70,32000], [70,32000]\n";

#define UNARY(op_id, op_name, text, ...) \
    .id = op_id, .name = op_name, .synopsis = text, .num_in = 1, .num_out = 1, .min_in = 1, .inplace = 1u << 0, .by_row = 1u << 0, \
    .by_element = true, .infer = unary_infer, .cost = unary_cost, .samples = unary_samples, .large = unary_large_samples, __VA_ARGS__

#define UNARY_BWD(op_id, op_name, text, ...) \
    .id = op_id, .name = op_name, .synopsis = text, .num_in = 2, .num_out = 1, .min_in = 2, .inplace = 1u << 0, \
    .by_row = 1u << 0 | 1u << 1, .by_element = true, .infer = unary_infer, .cost = unary_cost, .samples = unary_bwd_samples, \
    .large = unary_bwd_large_samples, __VA_ARGS__

const OpDef op_exp = {
    UNARY(OP_EXP, "exp", "y = e^x", .backward = exp_backward, .cpu = {{DT_SET_DECODE, exp_cpu, "reference"}}, .tile = exp_tile),
};

const OpDef op_log = {
    UNARY(OP_LOG, "log", "y = ln x", .backward = log_backward, .cpu = {{DT_SET_DECODE, log_cpu, "reference"}}, .tile = log_tile,
          .holds = {HOLDS_POSITIVE}),
};

const OpDef op_sqrt = {
    UNARY(OP_SQRT, "sqrt", "y = sqrt x", .backward = sqrt_backward, .cpu = {{DT_SET_DECODE, sqrt_cpu, "reference"}}, .tile = sqrt_tile,
          .holds = {HOLDS_POSITIVE}),
};

const OpDef op_tanh = {
    UNARY(OP_TANH, "tanh", "y = tanh x", .backward = tanh_backward, .cpu = {{DT_SET_DECODE, tanh_cpu, "reference"}}, .tile = tanh_tile),
};

const OpDef op_sigmoid = {
    UNARY(OP_SIGMOID, "sigmoid", "y = 1 / (1 + e^-x)", .backward = sigmoid_backward, .cpu = {{DT_SET_DECODE, sigmoid_cpu, "reference"}},
          .tile = sigmoid_tile),
};

const OpDef op_silu = {
    UNARY(OP_SILU, "silu", "y = x sigmoid(x)", .backward = silu_backward, .cpu = {{DT_SET_DECODE, silu_cpu, "reference"}},
          .tile = silu_tile),
};

const OpDef op_log_sigmoid = {
    UNARY(OP_LOG_SIGMOID, "log_sigmoid", "y = ln sigmoid(x), exact for large |x| too; -log_sigmoid(-x) is softplus",
          .backward = log_sigmoid_backward, .cpu = {{DT_SET_DECODE, log_sigmoid_cpu, "reference"}}, .tile = log_sigmoid_tile),
};

const OpDef op_sigmoid_bwd = {
    UNARY_BWD(OP_SIGMOID_BWD, "sigmoid_bwd", "dx = dy y (1 - y)", .cpu = {{DT_SET_FLOAT, sigmoid_bwd_cpu, "reference"}},
              .tile = sigmoid_bwd_tile),
};

const OpDef op_silu_bwd = {
    UNARY_BWD(OP_SILU_BWD, "silu_bwd", "dx = dy d silu(x) / dx", .cpu = {{DT_SET_FLOAT, silu_bwd_cpu, "reference"}}, .tile = silu_bwd_tile),
};

const OpDef op_log_sigmoid_bwd = {
    UNARY_BWD(OP_LOG_SIGMOID_BWD, "log_sigmoid_bwd", "dx = dy sigmoid(-x)", .cpu = {{DT_SET_FLOAT, log_sigmoid_bwd_cpu, "reference"}},
              .tile = log_sigmoid_bwd_tile),
};
