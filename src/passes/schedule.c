/* schedule: order and streams. Nodes that depend on nothing that changes run once after start; the others keep the order of
 * their making (forward, then backward from the end), except that a node that frees nothing by running early waits until just
 * before its first reader. */
#include "ops/ops.h"
#include "passes/pass.h"

static void mark_once(Graph *graph)
{
    for (Node *node = graph->first; node; node = node->next) {
        bool constant = !(node->op->flags & OP_RANDOM);
        for (int i = 0; i < node->num_in && constant; i++) {
            const Value *in = node->in[i];
            if (in) constant = in->producer ? (in->producer->flags & NODE_ONCE) != 0 : in->kind == VALUE_CONST;
        }
        for (int k = 0; k < node->num_out && constant; k++)
            constant = !node->out[k] || (!node->out[k]->home && node->out[k]->kind == VALUE_ACTIVATION);
        if (!constant) continue;
        node->flags |= NODE_ONCE;
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) node->out[k]->kind = VALUE_CONST;
    }
}

/* The first node that reads one of its outputs; NULL: none. */
static Node *first_reader(const Node *node)
{
    Node *first = NULL;
    for (int k = 0; k < node->num_out; k++)
        for (Use *use = node->out[k] ? node->out[k]->first_use : NULL; use; use = use->next)
            if (use->node && (!first || node_precedes(use->node, first))) first = use->node;
    return first;
}

/* What reads inputs and constants alone: no activation dies by running it early. */
static bool should_wait(const Node *node)
{
    if (node->flags & NODE_ONCE) return false;
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i] && node->in[i]->kind != VALUE_INPUT && node->in[i]->kind != VALUE_CONST) return false;
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k] && value_root(node->out[k], NULL)->kind != VALUE_ACTIVATION) return false;
    return true;
}

Status pass_schedule(PassContext *context, Graph **graph)
{
    (void)context;
    mark_once(*graph);
    for (Node *node = (*graph)->last, *prev; node; node = prev) {
        prev = node->prev;
        Node *reader = should_wait(node) ? first_reader(node) : NULL;
        if (reader) graph_move_before(*graph, node, reader);
    }
    return OK;
}
