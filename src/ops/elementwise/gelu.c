/* gelu: x Phi(x), where Phi is the normal distribution function (Hendrycks and Gimpel 2016): x (1 + erf(x / sqrt 2)) / 2. With attribute
 * tanh their approximation, x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)). gelu_bwd:
 * dx = dy d gelu / d x, from x. */
#include "ops/elementwise/gelu.h"
#include "ops/elementwise/elementwise.h"

static const AttrDef gelu_attrs[] = {ATTR_BOOL(GeluAttrs, tanh, false), {0}};

static Status gelu_backward(GradBuilder *grad, const Node *node)
{
    Value *x = node->in[0], *in[] = {grad_of(grad, node->out[0]), x}, *dx;
    TRY(grad_emit(grad, OP_GELU_BWD, node->attrs, in, 2, ~0u, &dx));
    return grad_add(grad, x, dx);
}

static OpCost gelu_cost(const Node *node)
{
    return cost_streaming(node, 30.0 * (double)type_numel(&node->in[0]->type));
}

static OpCost gelu_bwd_cost(const Node *node)
{
    return cost_streaming(node, 35.0 * (double)type_numel(&node->in[0]->type));
}

/* Phi(x), with errors of at most 2e-7 absolute and 2e-6 relative. bell = e^(-x^2 / 2). Phi(-z) is bell t p(t) with t = 1 / (1 + 0.3 z /
 * sqrt 2), where p is a polynomial fitted to a relative error of 2e-8. Without branches, so that loops over it vectorise. */
static inline float normal_cdf(float x, float bell)
{
    static const float fit[] = {8.459400288e-2f, 8.535760879e-2f,  7.416961952e-2f, 1.074628905e-1f, -4.732502702e-2f,
                                2.738595138e-1f, -2.561385949e-1f, 2.427813821e-1f, -6.476140545e-2f};
    float              t = 1.0f / (1.0f + 0.21213203436f * fabsf(x)), p = fit[8];
    for (int k = 7; k >= 0; k--) p = p * t + fit[k];
    p *= t * bell;
    return x < 0 ? p : 1.0f - p;
}

static inline float bell_of(float x)
{
    return vec_expf(-0.5f * x * x);
}

VEC_ROW void gelu_tile(float *y, const float *const *in, int64_t count, double tanh)
{
    const float *x = in[0];
    if (tanh != 0)
        for (int64_t i = 0; i < count; i++) y[i] = x[i] * vec_sigmoid(gelu_argument(x[i]));
    else
        for (int64_t i = 0; i < count; i++) y[i] = x[i] * normal_cdf(x[i], bell_of(x[i]));
}

/* dx may be dy. */
VEC_ROW void gelu_bwd_tile(float *dx, const float *const *in, int64_t count, double tanh)
{
    const float *dy = in[0], *x = in[1];
    if (tanh != 0) {
        for (int64_t i = 0; i < count; i++) {
            float s = vec_sigmoid(gelu_argument(x[i])), slope = gelu_argument_slope(x[i]);
            dx[i] = dy[i] * (s + x[i] * s * (1.0f - s) * slope);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            float bell = bell_of(x[i]);
            dx[i] = dy[i] * (normal_cdf(x[i], bell) + 0.3989422804f * x[i] * bell);
        }
    }
}

VEC_TASK(gelu_task)
{
    const KernelArgs *args = context;
    (void)worker;
    tiles_task(args, task, gelu_tile, ((const GeluAttrs *)args->attrs)->tanh);
}

VEC_TASK(gelu_bwd_task)
{
    const KernelArgs *args = context;
    (void)worker;
    tiles_task(args, task, gelu_bwd_tile, ((const GeluAttrs *)args->attrs)->tanh);
}

static Status gelu_cpu(const KernelArgs *args)
{
    return tiles_run(args, gelu_task);
}

static Status gelu_bwd_cpu(const KernelArgs *args)
{
    return tiles_run(args, gelu_bwd_task);
}

const OpDef op_gelu = {
    .id = OP_GELU,
    .name = "gelu",
    .synopsis = "y = x (1 + erf(x / sqrt 2)) / 2; tanh: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .inplace = 1u << 0,
    .attrs_size = sizeof(GeluAttrs),
    .attrs = gelu_attrs,
    .by_row = 1u << 0,
    .by_element = true,
    .infer = unary_infer,
    .backward = gelu_backward,
    .cost = gelu_cost,
    .cpu = {{DT_SET_DECODE, gelu_cpu, "reference"}},
    .tile = gelu_tile,
    .samples = "[9]\n"
               "[2,3,7] {tanh=true}\n"
               "[3,35,333]\n"
               "[70,1037] {tanh=true}\n",
    .large = "[600,3072]\n"
             "[600,3072] {tanh=true}\n",
};

const OpDef op_gelu_bwd = {
    .id = OP_GELU_BWD,
    .name = "gelu_bwd",
    .synopsis = "dx = dy d gelu(x) / dx",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .inplace = 1u << 0,
    .attrs_size = sizeof(GeluAttrs),
    .attrs = gelu_attrs,
    .by_row = 1u << 0 | 1u << 1,
    .by_element = true,
    .infer = unary_infer,
    .cost = gelu_bwd_cost,
    .cpu = {{DT_SET_FLOAT, gelu_bwd_cpu, "reference"}},
    .tile = gelu_bwd_tile,
    .samples = "[9], [9]\n"
               "[2,3,7], [2,3,7] {tanh=true}\n"
               "[3,35,333], [3,35,333]\n"
               "[70,1037], [70,1037] {tanh=true}\n",
    .large = "[600,3072], [600,3072]\n"
             "[600,3072], [600,3072] {tanh=true}\n",
};
