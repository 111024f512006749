/* pair: a layer and matrix A of its adapters multiply the same input, so the two products become one op, which a device computes in one
 * launch. The pass runs after those that choose how a product is made: a product that isn't plain stays as it is. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"

/* The node that makes the value, if it is a plain product; NULL: it isn't. */
static Node *product_of(const Value *value)
{
    Node *node = value ? value->producer : NULL;
    if (!node || node->op != &op_linear || value->sharing != STORAGE_OWN) return NULL;
    return value->type.dtype == node->in[0]->type.dtype ? node : NULL;
}

/* Whether `down` can be computed where `layer` is, together with it. */
static bool can_join(const Node *layer, const Node *down)
{
    const Node *maker = down->in[1]->producer;
    return layer != down && layer->in[0] == down->in[0] && !down->in[2] && layer->flags == down->flags && layer->stream == down->stream &&
           (!maker || node_precedes(maker, layer)) && node_precedes(layer, down);
}

static Status join(Graph *graph, Node *layer, Node *down)
{
    Value *in[] = {layer->in[0], layer->in[1], down->in[1], layer->in[2]};
    Node  *pair;
    pass_work_at(graph, layer);
    TRY(graph_add_node(graph, &op_linear_pair, NULL, arena_printf(graph->arena, "%s.pair", layer->out[0]->name), in, 4, ~0u, &pair));
    pair->flags = layer->flags;
    pair->stream = layer->stream;
    graph_replace_uses(graph, layer->out[0], pair->out[0], NULL);
    graph_replace_uses(graph, down->out[0], pair->out[1], NULL);
    graph_remove_node(graph, down);
    graph_remove_node(graph, layer);
    return OK;
}

/* Joins products at adapters' adds to a layer's result: y += h b^T with h = x a^T. */
Status pass_pair(PassContext *context, Graph **graph)
{
    (void)context;
    for (Node *node = (*graph)->first, *next; node; node = next) {
        bool  adds = node->op == &op_lora_rows || node->op == &op_lora_add || node->op == &op_linear_add;
        Node *layer = adds ? product_of(node->in[0]) : NULL, *down = adds ? product_of(node->in[1]) : NULL;
        next = node->next;
        if (layer && down && can_join(layer, down)) TRY(join(*graph, layer, down));
    }
    return OK;
}
