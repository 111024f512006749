/* A few ops that exist only for the tests of graphs: one of each kind that the IR knows. */
#pragma once

#include "ir/op.h"
#include "test.h"

typedef struct SourceAttrs {
    int64_t  len;
    double   scale;
    bool     flip;
    AttrList list;
} SourceAttrs;

static const AttrDef source_attrs[] = {
    ATTR_INT(SourceAttrs, len, 4), ATTR_FLOAT(SourceAttrs, scale, 0.5), ATTR_BOOL(SourceAttrs, flip, 0), ATTR_LIST(SourceAttrs, list), {0}};

static Status source_infer(Node *node)
{
    node->out[0]->type = type_make(DT_F32, 1, ((const SourceAttrs *)node->attrs)->len);
    return OK;
}

static Status same_infer(Node *node)
{
    node->out[0]->type = node->in[0]->type;
    return OK;
}

static Status add_infer(Node *node)
{
    FAIL_IF(!type_equal(&node->in[0]->type, &node->in[1]->type), ERR_INVALID, "a and b differ");
    return same_infer(node);
}

static Status split_infer(Node *node)
{
    node->out[0]->type = node->out[1]->type = node->in[0]->type;
    node->out[2]->type = type_make(DT_F32, 1, (int64_t)1);
    return OK;
}

static Status flat_infer(Node *node)
{
    node->out[0]->type = type_make(node->in[0]->type.dtype, 1, type_numel(&node->in[0]->type));
    return OK;
}

/* source -> f32[len]; add: a + b; split: x, [y], z -> two of x's type and f32[1]; flat: a 1-D view; sum: x, [acc] -> acc + x in acc's
 * memory. */
static const OpDef op_source = {
    .name = "source", .num_out = 1, .attrs_size = sizeof(SourceAttrs), .attrs = source_attrs, .infer = source_infer};
static const OpDef op_add = {.name = "add", .synopsis = "a + b", .num_in = 2, .num_out = 1, .min_in = 2, .infer = add_infer};
static const OpDef op_split = {.name = "split", .num_in = 3, .num_out = 3, .min_in = 3, .optional_in = 2, .infer = split_infer};
static const OpDef op_flat = {.name = "flat", .num_in = 1, .num_out = 1, .min_in = 1, .flags = OP_VIEW, .infer = flat_infer};
static const OpDef op_sum = {
    .name = "sum", .num_in = 2, .num_out = 1, .min_in = 1, .alias = {{0, 1, true}}, .num_alias = 1, .infer = same_infer};
static const OpDef *const fake_ops[] = {&op_source, &op_add, &op_split, &op_flat, &op_sum};
enum { NUM_FAKE_OPS = sizeof fake_ops / sizeof *fake_ops };
