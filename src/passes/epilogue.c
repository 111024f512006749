/* epilogue: what is quantised right after it is made is quantised where it is made, so that it isn't read again. Ops say which of their
 * outputs they make codes of (OpCodes); the bits are the same. */
#include "ops/ops.h"
#include "passes/pass.h"

/* In one direction, so that codes don't live from the forward pass on which the backward pass makes. */
static bool run_together(const Node *maker, const Node *quantise)
{
    enum { SAME = NODE_BACKWARD | NODE_ONCE | NODE_AT_USE };
    return !((maker->flags ^ quantise->flags) & SAME) && maker->stream == quantise->stream;
}

/* What makes the input of `node`, if that can make codes of it too; NULL: none. */
static Node *maker_of(const Node *node)
{
    const Value   *value = node->num_in ? node->in[0] : NULL;
    Node          *maker = value ? value->producer : NULL;
    const OpCodes *codes = maker ? &maker->op->codes : NULL;
    if (!codes || !codes->op || codes->op != node->op || value->out_index != codes->of || !run_together(maker, node)) return NULL;
    return *(int64_t *)(void *)((char *)maker->attrs + codes->attr) || !codes->fits(maker) ? NULL : maker;
}

static Status merge(Graph *graph, Node *maker, Node *node)
{
    const OpCodes *codes = &maker->op->codes;
    *(int64_t *)(void *)((char *)maker->attrs + codes->attr) = DTYPE_TO_ATTR(DT_E4M3);
    for (int k = 0; k < node->num_out; k++) {
        if (!node->out[k]) continue;
        TRY(node_want_output(graph, maker, codes->out + k, node->out[k]->name));
        graph_replace_uses(graph, node->out[k], maker->out[codes->out + k], NULL);
    }
    graph_remove_node(graph, node);
    if (!maker->out[codes->of]->num_uses && maker->out[codes->of]->sharing == STORAGE_OWN) node_drop_output(maker, codes->of);
    return OK;
}

Status pass_epilogue(PassContext *context, Graph **graph)
{
    (void)context;
    for (Node *node = (*graph)->first, *next; node; node = next) {
        Node *maker = maker_of(node);
        next = node->next;
        if (maker) TRY(merge(*graph, maker, node));
    }
    return OK;
}
