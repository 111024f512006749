#include "passes/recipe_layers.h"

#include "ops/attrs.h"
#include "ops/ops.h"

const Param *layers_param(const Value *weight)
{
    const Value *member = weight->first_member;
    while (member && !member->param) member = member->next_member;
    return weight->param ? weight->param : member ? member->param : NULL;
}

int layers_list_params(Arena *arena, const Value *weight, const char *const **out)
{
    int          count = 1, used = 0;
    const char **names;
    for (const Value *member = weight->first_member; member; member = member->next_member) count++;
    *out = names = arena_array(arena, const char *, count);
    if (weight->param) names[used++] = arena_printf(arena, "%s", weight->name);
    for (const Value *member = weight->param ? NULL : weight->first_member; member; member = member->next_member)
        if (member->param) names[used++] = arena_printf(arena, "%s", member->name);
    return used;
}

bool layers_has_weight(const RecipeLayers *layers, const Value *weight)
{
    const Param *param = weight->kind == VALUE_PARAM && !weight->producer ? layers_param(weight) : NULL;
    return param && !param->ns && param->is_linear && !param->is_head && !param->is_adapter && weight->type.ndim == 2 &&
           param->layer >= layers->first && param->layer < layers->end;
}

bool layers_is_forward(const RecipeLayers *layers, const Node *node)
{
    return node->op == &op_linear && layers_has_weight(layers, node->in[1]);
}

/* Adapters read columns of dy. */
bool layers_is_dx(const RecipeLayers *layers, const Node *node)
{
    const LinearAttrs *attrs = node->attrs;
    return node->op == &op_linear_dx && layers_has_weight(layers, node->in[1]) && attrs->col == 0 &&
           node->in[1]->type.dim[0] == type_cols(&node->in[0]->type);
}

Value *layers_weight_of_dw(const RecipeLayers *layers, const Node *node)
{
    if (node->op != &op_linear_dw) return NULL;
    const Value *home = value_root(node->out[0], NULL);
    return home->id < layers->num_values ? layers->weight[home->id] : NULL;
}

void layers_find(RecipeLayers *layers, Graph *graph, const PrecisionOptions *options)
{
    int64_t count = 0;
    for (int i = 0; i < graph->num_params; i++)
        if (!graph->params[i]->ns && graph->params[i]->layer >= count) count = graph->params[i]->layer + 1;
    *layers =
        (RecipeLayers){.graph = graph, .first = options->skip_first, .end = count - options->skip_last, .num_values = graph->num_values};
    layers->weight = arena_array(graph->arena, Value *, graph->num_values + 1);
    for (const Node *node = graph->first; node; node = node->next) {
        if (!layers_is_forward(layers, node)) continue;
        Value *home = graph_find(graph, arena_printf(graph->arena, "grad.%s", node->in[1]->name));
        if (home) layers->weight[home->id] = node->in[1];
    }
}
