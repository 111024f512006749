/* prefetch: gathers at use begin a layer ahead, so that they run beside the layer before their reader's layer. Each value is gathered once
 * a layer.
 *
 * Adjacent nodes of one layer and pass are a group. A gather for group i stands where group i - 1 begins, so that it doesn't queue behind
 * gathers for later groups. It waits for the end of group i - 2, so gathered weights of two groups exist at a time. */
#include "ops/ops.h"
#include "passes/pass.h"

static bool is_gather(const Node *node)
{
    return node->stream == STREAM_COMM && node->flags & NODE_AT_USE;
}

typedef struct Group {
    Node *first, *last; /* first and last node that isn't made at use */
    Node *gathers;      /* the first gather for the group */
} Group;

/* Removes a gather that reads the same value as an earlier one for the same group; its readers read the earlier result. False: there is
 * none. */
static bool merge(Graph *graph, Node *first, Node *gather)
{
    for (Node *node = first; node && node != gather; node = node->next) {
        if (!is_gather(node) || node->in[0] != gather->in[0]) continue;
        graph_replace_uses(graph, gather->out[0], node->out[0], NULL);
        graph_remove_node(graph, gather);
        return true;
    }
    return false;
}

static bool begins_group(const Group *group, const Node *node)
{
    return !group->first || group->first->layer != node->layer || (group->first->flags ^ node->flags) & NODE_BACKWARD;
}

/* Finds the groups of a graph. Gathers stand right before their readers; of gathers of one value, each group keeps the first. */
static Group *find_groups(Graph *graph, int *out_count)
{
    Group *groups = arena_array(graph->arena, Group, graph->num_nodes + 1);
    int    count = 0;
    Node  *waiting = NULL; /* the first gather after the last node of a group */
    for (Node *node = graph->first, *next; node; node = next) {
        next = node->next;
        if (node->flags & NODE_AT_USE) {
            if (is_gather(node) && !waiting) waiting = node;
            continue;
        }
        if (node->stream != STREAM_COMPUTE) continue;
        if (!count || begins_group(&groups[count - 1], node)) groups[count++].first = node;
        Group *group = &groups[count - 1];
        group->last = node;
        if (!group->gathers) group->gathers = waiting;
        for (Node *gather = waiting, *after; gather && gather != node; gather = after) {
            after = gather->next;
            if (is_gather(gather)) merge(graph, group->gathers, gather);
        }
        waiting = NULL;
    }
    *out_count = count;
    return groups;
}

static void move_ahead(Graph *graph, Group *groups, int g)
{
    for (Node *node = groups[g].gathers, *next; node && node != groups[g].last; node = next) {
        next = node->next;
        if (!is_gather(node)) continue;
        if (g > 1) node_add_after(graph, node, groups[g - 2].last);
        if (g > 0) graph_move_before(graph, node, groups[g - 1].first);
    }
}

Status pass_prefetch(PassContext *context, Graph **graph)
{
    int count;
    if (context->options->world == 1) return OK;
    Group *groups = find_groups(*graph, &count);
    for (int g = 0; g < count; g++) move_ahead(*graph, groups, g);
    return OK;
}
