/* cache: for prefill and decode. Attention appends this run's keys and values to a cache and attends over all of it;
 * prefill computes logits of one row only (input `row`, the chunk's last true token). */
#include "ops/ops.h"
#include "passes/pass.h"

static Status use_cache(PassContext *context, Graph *graph, Node *node)
{
    Node *cached;
    graph->layer = node->layer;
    graph->part = node->part;
    graph->cursor = node;
    TRY(node->op->cached(graph, node, context->options->cache_batch, context->options->cache_len, &cached));
    graph->cursor = NULL;
    graph_replace_uses(graph, node->out[0], cached->out[0], node);
    graph_remove_node(graph, node);
    return OK;
}

static Status one_row(PassContext *context, Graph *graph)
{
    Value *logits = graph_output(graph, "logits");
    Node  *head = logits ? logits->producer : NULL;
    FAIL_IF(!head || head->op != &op_linear, ERR_UNSUPPORTED, "%s: \"logits\" isn't a linear layer's output; generation needs that",
            context->file);
    TensorType type = type_make(DT_I32, 1, context->options->cache_batch);
    Value     *in[] = {head->in[0], graph_add_value(graph, VALUE_INPUT, "row", &type)};
    Node      *row, *last;
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->cursor = head;
    TRY(graph_add_node(graph, &op_gather_row, NULL, "last_row", in, 2, ~0u, &row));
    Value *head_in[] = {row->out[0], head->in[1], head->in[2]};
    TRY(graph_add_node(graph, &op_linear, NULL, "last_logits", head_in, 3, ~0u, &last));
    graph->cursor = NULL;
    graph_replace_uses(graph, logits, last->out[0], head);
    graph_remove_node(graph, head);
    return OK;
}

Status pass_cache(PassContext *context, Graph **graph)
{
    for (Node *node = (*graph)->first, *next; node; node = next) {
        next = node->next;
        if (node->op->cached) TRY(use_cache(context, *graph, node));
    }
    return context->kind == PROGRAM_PREFILL ? one_row(context, *graph) : OK;
}
