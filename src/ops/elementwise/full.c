/* full: a vector filled with one number, such as weights for a norm that has none; with dtype i32 an integer. */
#include "ops/infer.h"

static const AttrDef full_attrs[] = {ATTR_INT(FullAttrs, size, 0), ATTR_FLOAT(FullAttrs, value, 1), ATTR_DTYPE(FullAttrs, dtype), {0}};

/* -> y (size) f32, or i32. */
static Status full_infer(Node *node)
{
    const FullAttrs *attrs = node->attrs;
    FAIL_IF(attrs->size < 1, ERR_INVALID, "attribute size is %lld, expected the number of elements", (long long)attrs->size);
    DType dtype = attrs->dtype ? ATTR_TO_DTYPE(attrs->dtype) : DT_F32;
    FAIL_IF(dtype != DT_F32 && dtype != DT_I32, ERR_INVALID, "attribute dtype is %s, expected f32 or i32", dtype_info(dtype)->name);
    FAIL_IF(dtype == DT_I32 && !(attrs->value >= INT32_MIN && attrs->value <= INT32_MAX && attrs->value == (double)(int32_t)attrs->value),
            ERR_INVALID, "attribute value is %g, expected a whole number that i32 holds", attrs->value);
    node->out[0]->type = type_make(dtype, 1, attrs->size);
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
    bool             whole = args->out[0].type.dtype == DT_I32;
    for (int64_t i = 0; i < attrs->size && !whole; i++) y[i] = (float)attrs->value;
    for (int64_t i = 0; i < attrs->size && whole; i++) ((int32_t *)args->out[0].data)[i] = (int32_t)attrs->value;
    return OK;
}

const OpDef op_full = {
    .id = OP_FULL,
    .name = "full",
    .synopsis = "y = value",
    .num_out = 1,
    .attrs_size = sizeof(FullAttrs),
    .attrs = full_attrs,
    .infer = full_infer,
    .cost = full_cost,
    .cpu = {{DT_SET_FLOAT | DT_SET(DT_I32), full_cpu, "reference"}},
    .samples = "{size=16}\n"
               "{size=4099, value=-0.25}\n"
               "{size=70, value=-100, dtype=i32}\n",
};
