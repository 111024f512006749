#include "passes/operands.h"

#include "ops/attrs.h"
#include "ops/ops.h"

#include <string.h>

/* ---- layers ---- */

const Param *layers_param(const Value *weight)
{
    const Value *member = weight->first_member;
    while (member && !member->param) member = member->next_member;
    return weight->param ? weight->param : member ? member->param : NULL;
}

bool layers_has_weight(const RecipeLayers *layers, const Value *weight)
{
    const Param *param = weight->kind == VALUE_PARAM && !weight->producer ? layers_param(weight) : NULL;
    return param && !param->ns && param->is_linear && !param->is_head && !param->is_adapter && weight->type.ndim == 2 &&
           param->layer >= layers->first && param->layer < layers->end;
}

/* Whether the node makes dx of the layer itself: an adapter's node reads only some columns of dy. */
static bool is_dx(const Node *node)
{
    return node->op == &op_linear_dx && ((const LinearAttrs *)node->attrs)->col == 0 &&
           node->in[1]->type.dim[0] == type_cols(&node->in[0]->type);
}

ProductKind layers_kind(const RecipeLayers *layers, const Node *node, Value **out_weight)
{
    if (node->op == &op_linear_dw) {
        const Value *home = value_root(node->out[0], NULL);
        *out_weight = home->id < layers->num_values ? layers->weight[home->id] : NULL;
        return *out_weight ? PRODUCT_DW : PRODUCT_NONE;
    }
    if ((node->op != &op_linear && !is_dx(node)) || !layers_has_weight(layers, node->in[1])) return PRODUCT_NONE;
    *out_weight = node->in[1];
    return node->op == &op_linear ? PRODUCT_Y : PRODUCT_DX;
}

void layers_find(RecipeLayers *layers, Graph *graph, const PrecisionOptions *options)
{
    int64_t count = 0;
    Value  *weight;
    for (int i = 0; i < graph->num_params; i++)
        if (!graph->params[i]->ns && graph->params[i]->layer >= count) count = graph->params[i]->layer + 1;
    *layers =
        (RecipeLayers){.graph = graph, .first = options->skip_first, .end = count - options->skip_last, .num_values = graph->num_values};
    layers->weight = arena_array(graph->arena, Value *, graph->num_values + 1);
    for (const Node *node = graph->first; node; node = node->next) {
        if (layers_kind(layers, node, &weight) != PRODUCT_Y) continue;
        Value *home = graph_find(graph, arena_printf(graph->arena, "grad.%s", weight->name));
        if (home) layers->weight[home->id] = weight;
    }
}

Status layers_walk(const RecipeLayers *layers, Status (*rewrite)(void *context, const Product *product), void *context)
{
    for (Node *node = layers->graph->first, *next; node; node = next) {
        Product product = {.node = node};
        next = node->next;
        product.kind = layers_kind(layers, node, &product.weight);
        if (product.kind) TRY(rewrite(context, &product));
    }
    return OK;
}

/* ---- nodes that replace others ---- */

void value_take_place(Graph *graph, Value *old, Value *fresh)
{
    if (old->sharing == STORAGE_HOME) value_place_in(fresh, old->storage, old->offset);
    graph_replace_uses(graph, old, fresh, NULL);
}

Status node_replace(Graph *graph, Node *old, const OpDef *op, const void *attrs, Value *const *in, int num_in, Value **out)
{
    Node *fresh;
    pass_work_at(graph, old);
    TRY(graph_add_node(graph, op, attrs, old->out[0]->name, in, num_in, ~0u, &fresh));
    fresh->flags |= old->flags & NODE_BACKWARD;
    value_take_place(graph, old->out[0], fresh->out[0]);
    graph_remove_node(graph, old);
    if (out) *out = fresh->out[0];
    return OK;
}

/* ---- operands ---- */

void operands_start(Precision *p)
{
    enum { MOST_ADDED = NODE_MAX_IN + NODE_MAX_OUT };
    p->of = arena_array(p->graph->arena, Operand, p->graph->num_values + MOST_ADDED * p->graph->num_nodes);
}

void operands_work_at(const Precision *p, const Value *value, const Node *reader)
{
    pass_work_at(p->graph, (Node *)reader);
    if (value->producer) p->graph->part = value->producer->part;
}

Status operands_multiply(const Precision *p, const Product *product, const OperandFormat *format, Value **out)
{
    Node             *node = product->node;
    bool              is_y = product->kind == PRODUCT_Y, is_dw = product->kind == PRODUCT_DW;
    const Operand    *a = &p->of[node->in[0]->id], *b = &p->of[node->in[1]->id];
    Value            *in[2 * OPERAND_MOST_PARTS + 2];
    int               count = 2 * format->num_parts;
    ScaledLinearAttrs attrs = {.alpha = is_y ? 1 : ((const LinearAttrs *)node->attrs)->alpha,
                               .dtype = DTYPE_TO_ATTR(node->out[0]->type.dtype),
                               .fast = format->fast && !(node->flags & NODE_BACKWARD)};
    for (int k = 0; k < format->num_parts; k++) {
        in[2 * k] = is_dw ? a->turned[k] : a->along[k];
        in[2 * k + 1] = is_y ? b->along[k] : b->turned[k];
    }
    in[count] = is_y ? node->in[2] : NULL;
    in[count + 1] = is_y ? NULL : node->in[2];
    return node_replace(p->graph, node, format->op, &attrs, in, count + 2, out);
}

/* ---- weights in codes ---- */

Value *operands_lasting(const Precision *p, const Value *of, const char *name, const TensorType *type)
{
    const Param *param = layers_param(of);
    Value       *value = graph_find(p->graph, name);
    if (value) return value;
    value = graph_add_value(p->graph, param && param->trained ? VALUE_STATE : VALUE_PARAM, name, type);
    value->layer = of->layer;
    return value;
}

void operands_become_codes(Value *weight, DType dtype)
{
    weight->type.dtype = dtype;
    for (Value *member = weight->first_member; member; member = member->next_member) member->type.dtype = dtype;
}

int operands_list_params(const Precision *p, const Value *weight, const char *const **out)
{
    Arena       *arena = p->plan->arena;
    int          count = 1, used = 0;
    const char **names;
    for (const Value *member = weight->first_member; member; member = member->next_member) count++;
    *out = names = arena_array(arena, const char *, count);
    if (weight->param) names[used++] = arena_printf(arena, "%s", weight->name);
    for (const Value *member = weight->param ? NULL : weight->first_member; member; member = member->next_member)
        if (member->param) names[used++] = arena_printf(arena, "%s", member->name);
    return used;
}

CodedWeight *operands_tell_plan(const Precision *p, CodedFormat format, const Value *weight, bool *out_new)
{
    Plan *plan = p->plan;
    *out_new = false;
    for (int i = 0; i < plan->num_coded; i++)
        if (strcmp(plan->coded[i].name, weight->name) == 0) return &plan->coded[i];
    *out_new = true;
    plan->coded_format = format;
    if (!plan->coded) plan->coded = arena_array(plan->arena, CodedWeight, p->graph->num_params + 1);
    CodedWeight *row = &plan->coded[plan->num_coded++];
    row->name = arena_printf(plan->arena, "%s", weight->name);
    if (!layers_param(weight)->trained) row->num_params = operands_list_params(p, weight, &row->params);
    return row;
}
