/* full: a vector of one number, as the weights of a norm that has none. */
#include "ops/infer.h"

static const AttrDef full_attrs[] = {ATTR_INT(FullAttrs, size, 0), ATTR_FLOAT(FullAttrs, value, 1), {0}};

/* -> y (size) f32. */
static Status full_infer(Node *node)
{
    const FullAttrs *attrs = node->attrs;
    FAIL_IF(attrs->size < 1, ERR_INVALID, "attribute size is %lld, expected the number of elements", (long long)attrs->size);
    node->out[0]->type = type_make(DT_F32, 1, attrs->size);
    return OK;
}

static OpCost full_cost(const Node *node)
{
    return cost_streaming(node, 0);
}

static Status full_cpu(const KernelArgs *args)
{
    const FullAttrs *attrs = args->attrs;
    float           *y = args->out[0].data;
    for (int64_t i = 0; i < attrs->size; i++) y[i] = (float)attrs->value;
    return OK;
}

static const FullAttrs full_ones = {.size = 16, .value = 1}, full_large = {.size = 4099, .value = -0.25};

static const OpSample full_samples[] = {{.attrs = &full_ones}, {.attrs = &full_large}};

const OpDef op_full = {
    .id = OP_FULL,
    .name = "full",
    .synopsis = "y = value",
    .num_out = 1,
    .attrs_size = sizeof(FullAttrs),
    .attrs = full_attrs,
    .infer = full_infer,
    .cost = full_cost,
    .cpu = {{DT_SET_FLOAT, full_cpu, "reference"}},
    .samples = full_samples,
    .num_samples = sizeof full_samples / sizeof full_samples[0],
};
