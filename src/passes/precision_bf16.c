/* Forward products of the blocks' linear layers in bf16 where the model is fp32: operands are rounded to bf16, products are summed in fp32,
 * and the result is fp32. Each operand is rounded once. The backward pass has products of its own, of what the operands were. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"
#include "passes/recipe_layers.h"

/* New nodes stand before `reader`; they are dropped and made again with what makes the value. */
static Status round_operand(Graph *graph, Value *value, Node *reader, Value **rounded)
{
    CastAttrs attrs = {.dtype = DTYPE_TO_ATTR(DT_BF16)};
    Value   **out = &rounded[value->id];
    Node     *node;
    if (*out) return OK;
    graph->cursor = reader;
    graph->layer = reader->layer;
    graph->part = value->producer ? value->producer->part : reader->part;
    graph->source = reader->source;
    TRY(graph_add_node(graph, &op_cast, &attrs, arena_printf(graph->arena, "%s.bf16", value->name), &value, 1, ~0u, &node));
    *out = node->out[0];
    return OK;
}

static Status rewrite(Graph *graph, Node *node, Value **rounded)
{
    LinearAttrs attrs = {.dtype = DTYPE_TO_ATTR(DT_F32)};
    Value      *old = node->out[0];
    Node       *product;
    for (int i = 0; i < 2; i++) TRY(round_operand(graph, node->in[i], node, rounded));
    Value *in[] = {rounded[node->in[0]->id], rounded[node->in[1]->id], node->in[2]};
    graph->cursor = node;
    graph->part = node->part;
    TRY(graph_add_node(graph, &op_linear, &attrs, old->name, in, 3, ~0u, &product));
    if (old->sharing == STORAGE_HOME) value_place_in(product->out[0], old->storage, old->offset);
    graph_replace_uses(graph, old, product->out[0], NULL);
    graph_remove_node(graph, node);
    return OK;
}

Status precision_bf16(PassContext *context, Graph *graph)
{
    enum { MOST_ADDED = 4 }; /* values for a product */
    RecipeLayers layers;
    layers_find(&layers, graph, &context->options->precision);
    Value **rounded = arena_array(graph->arena, Value *, graph->num_values + MOST_ADDED * graph->num_nodes);
    for (Node *node = graph->first, *next; node; node = next) {
        next = node->next;
        if (layers_is_forward(&layers, node) && node->in[0]->type.dtype == DT_F32) TRY(rewrite(graph, node, rounded));
    }
    graph->cursor = NULL;
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->source = NULL;
    return OK;
}
