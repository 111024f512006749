/* cache: for entries with a cache. Attention appends this run's keys and values to it and attends over all of it; an entry of one token
 * computes logits of that token of each row only (input `row`, a chunk's last true token). */
#include "ops/ops.h"
#include "passes/pass.h"

static Status use_cache(PassContext *context, Graph *graph, Node *node)
{
    Node *cached;
    graph->layer = node->layer;
    graph->part = node->part;
    graph->cursor = node;
    TRY(node->op->cached(graph, node, context->program->spec.batch, context->options->cache_len, &cached));
    graph->cursor = NULL;
    graph_replace_uses(graph, node->out[0], cached->out[0], node);
    graph_remove_node(graph, node);
    return OK;
}

/* What the logits may go through behind the head, element by element. */
static bool is_over_head(const Node *node)
{
    return node && (node->op == &op_softcap || node->op == &op_scale);
}

/* The logits again of one row. */
static Status one_row(PassContext *context, Graph *graph)
{
    enum { MAX_OVER = 4 };
    Value *logits = graph_output(graph, "logits"), *value;
    Node  *head = logits ? logits->producer : NULL, *over[MAX_OVER], *last = head, *node;
    int    num_over = 0;
    for (; is_over_head(head) && num_over < MAX_OVER; head = head->in[0]->producer) over[num_over++] = head;
    FAIL_IF(!head || head->op != &op_linear, ERR_UNSUPPORTED,
            "%s: \"logits\" isn't a linear layer's output, or softcap or scale of it; generation needs that", context->file);
    Value *in[] = {head->in[0], graph_add_feed(graph, FEED_ROW, context->program->spec.batch, 1)};
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->cursor = last;
    TRY(graph_add_node(graph, &op_gather_row, NULL, "last_row", in, 2, ~0u, &node));
    Value *head_in[] = {node->out[0], head->in[1], head->in[2]};
    TRY(graph_add_node(graph, &op_linear, NULL, "last_logits", head_in, 3, ~0u, &node));
    value = node->out[0];
    for (int i = num_over - 1; i >= 0; i--) {
        TRY(graph_add_node(graph, over[i]->op, over[i]->attrs, arena_printf(graph->arena, "last_%s", over[i]->out[0]->name), &value, 1, ~0u,
                           &node));
        value = node->out[0];
    }
    graph->cursor = NULL;
    graph_replace_uses(graph, logits, value, last);
    for (int i = 0; i < num_over; i++) graph_remove_node(graph, over[i]);
    graph_remove_node(graph, head);
    return OK;
}

Status pass_cache(PassContext *context, Graph **graph)
{
    for (Node *node = (*graph)->first, *next; node; node = next) {
        next = node->next;
        if (node->op->cached) TRY(use_cache(context, *graph, node));
    }
    return context->program->spec.entry->one_token ? one_row(context, *graph) : OK;
}
