/* schedule: the order of nodes. Nodes that depend only on constants run once, when the session is created. The others keep the order in
 * which they were made (forward, then backward from the end). But a node that frees nothing by running early waits until just before its
 * first reader. */
#include "ops/ops.h"
#include "passes/pass.h"

/* By id of a value with memory of its own: whether a run overwrites it with a later version, so that the next run must make it anew. */
static char *find_overwritten(const Graph *graph, const Root *roots)
{
    char *overwritten = arena_array(graph->arena, char, graph->num_values + 1);
    for (const Node *node = graph->first; node; node = node->next)
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k] && node->out[k]->sharing == STORAGE_UPDATE) overwritten[roots[node->out[k]->id].value->id] = 1;
    return overwritten;
}

static void mark_once(Graph *graph)
{
    const Root *roots = graph_roots(graph);
    const char *overwritten = find_overwritten(graph, roots);
    for (Node *node = graph->first; node; node = node->next) {
        bool constant = !(node->op->flags & OP_RANDOM) && !(node->flags & NODE_AT_USE);
        for (int i = 0; i < node->num_in && constant; i++) {
            const Value *in = node->in[i];
            if (in) constant = in->producer ? (in->producer->flags & NODE_ONCE) != 0 : in->kind == VALUE_CONST;
        }
        for (int k = 0; k < node->num_out && constant; k++) {
            const Value *out = node->out[k];
            constant = !out || (out->kind == VALUE_ACTIVATION && !overwritten[roots[out->id].value->id]);
        }
        if (!constant) continue;
        node->flags |= NODE_ONCE;
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) node->out[k]->kind = VALUE_CONST;
    }
}

/* The first reader of any of the node's outputs; NULL: none. */
static Node *first_reader(const Node *node)
{
    Node *first = NULL;
    for (int k = 0; k < node->num_out; k++) {
        Node *reader = node->out[k] ? value_first_reader(node->out[k]) : NULL;
        if (reader && (!first || node_precedes(reader, first))) first = reader;
    }
    return first;
}

bool pass_reads_given(const Node *node)
{
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i] && node->in[i]->kind != VALUE_INPUT && node->in[i]->kind != VALUE_CONST) return false;
    return true;
}

static bool should_wait(const Node *node)
{
    if (node->flags & NODE_ONCE || !pass_reads_given(node)) return false;
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
