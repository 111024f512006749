/* softcap: y = cap tanh(x / cap): small x stay nearly unchanged, and |y| stays below cap. softcap_bwd: dx = dy (1 - (y / cap)^2), from
 * y. */
#include "ops/elementwise/elementwise.h"

static const AttrDef softcap_attrs[] = {ATTR_FLOAT(SoftcapAttrs, cap, 0), {0}};

/* x (...) -> y of x's type; backward dy, y (...) -> dx of y's type. */
static Status softcap_infer(Node *node)
{
    int    last = node->num_in - 1;
    double cap = ((const SoftcapAttrs *)node->attrs)->cap;
    FAIL_IF(!(cap > 0), ERR_INVALID, "attribute cap %g, expected a positive number", cap);
    TRY(infer_float(node, last, last ? "y" : "x", 1));
    if (last) TRY(infer_like(node, 0, "dy", DT_SET_FLOAT, &node->in[last]->type));
    node->out[0]->type = node->in[last]->type;
    return OK;
}

static Status softcap_backward(GradBuilder *grad, const Node *node)
{
    Value *in[] = {grad_of(grad, node->out[0]), node->out[0]}, *dx;
    TRY(grad_emit(grad, OP_SOFTCAP_BWD, node->attrs, in, 2, ~0u, &dx));
    return grad_add(grad, node->in[0], dx);
}

static OpCost softcap_cost(const Node *node)
{
    return cost_streaming(node, (node->num_in > 1 ? 4.0 : 30.0) * (double)type_numel(&node->in[0]->type));
}

VEC_ROW void softcap_tile(float *y, const float *const *in, int64_t count, double number)
{
    float cap = (float)number;
    for (int64_t i = 0; i < count; i++) y[i] = cap * vec_tanhf(in[0][i] / cap);
}

VEC_ROW void softcap_bwd_tile(float *dx, const float *const *in, int64_t count, double number)
{
    float cap = (float)number;
    for (int64_t i = 0; i < count; i++) {
        float t = in[1][i] / cap;
        dx[i] = in[0][i] * (1.0f - t * t);
    }
}

VEC_TASK(softcap_task)
{
    const KernelArgs *args = context;
    (void)worker;
    tiles_task(args, task, softcap_tile, ((const SoftcapAttrs *)args->attrs)->cap);
}

VEC_TASK(softcap_bwd_task)
{
    const KernelArgs *args = context;
    (void)worker;
    tiles_task(args, task, softcap_bwd_tile, ((const SoftcapAttrs *)args->attrs)->cap);
}

static Status softcap_cpu(const KernelArgs *args)
{
    return tiles_run(args, softcap_task);
}

static Status softcap_bwd_cpu(const KernelArgs *args)
{
    return tiles_run(args, softcap_bwd_task);
}

const OpDef op_softcap = {
    .id = OP_SOFTCAP,
    .name = "softcap",
    .synopsis = "y = cap tanh(x / cap)",
    .num_in = 1,
    .num_out = 1,
    .min_in = 1,
    .inplace = 1u << 0,
    .attrs_size = sizeof(SoftcapAttrs),
    .attrs = softcap_attrs,
    .by_row = 1u << 0,
    .by_element = true,
    .infer = softcap_infer,
    .backward = softcap_backward,
    .cost = softcap_cost,
    .cpu = {{DT_SET_DECODE, softcap_cpu, "reference"}},
    .tile = softcap_tile,
    .samples = "[9] {cap=1}\n"
               "[3,35,333] {cap=30}\n",
    .large = "[70,32000] {cap=1}\n",
};

const OpDef op_softcap_bwd = {
    .id = OP_SOFTCAP_BWD,
    .name = "softcap_bwd",
    .synopsis = "dx = dy (1 - (y / cap)^2)",
    .num_in = 2,
    .num_out = 1,
    .min_in = 2,
    .inplace = 1u << 0,
    .attrs_size = sizeof(SoftcapAttrs),
    .attrs = softcap_attrs,
    .by_row = 1u << 0 | 1u << 1,
    .by_element = true,
    .infer = softcap_infer,
    .cost = softcap_cost,
    .cpu = {{DT_SET_FLOAT, softcap_bwd_cpu, "reference"}},
    .tile = softcap_bwd_tile,
    .samples = "[9], [9] {cap=1}\n"
               "[3,35,333], [3,35,333] {cap=30}\n",
    .large = "[70,32000], [70,32000] {cap=30}\n",
};
