/* clean: merges equal computations and removes unread ones. */
#include "base/hash.h"
#include "ops/ops.h"
#include "passes/pass.h"

#include <string.h>

/* Whether the node writes memory that outlives the run. */
static bool has_effect(const Node *node)
{
    for (int k = 0; k < node->num_out; k++) {
        Value *out = node->out[k];
        if (out && out->sharing != STORAGE_VIEW && value_root(out, NULL)->kind != VALUE_ACTIVATION) return true;
    }
    return false;
}

static bool is_read(const Node *node)
{
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k] && node->out[k]->num_uses) return true;
    return false;
}

void remove_dead_nodes(Graph *graph)
{
    for (Node *node = graph->last, *prev; node; node = prev) {
        prev = node->prev;
        if (!is_read(node) && !has_effect(node)) graph_remove_node(graph, node);
    }
}

/* Drops outputs that nobody reads. The kernel gets NULL for them, even if it needs their values itself. */
static void drop_unread_outputs(Graph *graph)
{
    for (Node *node = graph->first; node; node = node->next) {
        for (int k = 0; k < node->num_out; k++) {
            Value *out = node->out[k];
            if (!out || out->num_uses || value_root(out, NULL)->kind != VALUE_ACTIVATION) continue;
            node_drop_output(node, k);
        }
    }
}

static uint64_t node_hash(const Node *node)
{
    int32_t ids[NODE_MAX_IN];
    for (int i = 0; i < node->num_in; i++) ids[i] = node->in[i] ? node->in[i]->id : -1;
    return hash_bytes(ids, sizeof *ids * (size_t)node->num_in, (uint64_t)node->op->id);
}

static bool same_computation(const Node *a, const Node *b)
{
    if (a->op != b->op || memcmp(a->in, b->in, sizeof(Value *) * (size_t)a->num_in) != 0) return false;
    for (int k = 0; k < a->num_out; k++)
        if (a->out[k] && b->out[k] && a->out[k]->space != b->out[k]->space) return false;
    return !a->op->attrs_size || memcmp(a->attrs, b->attrs, a->op->attrs_size) == 0;
}

/* By value id: whether some node takes over the value's memory, directly or through a view. Merging may not lengthen the life of such a
 * value. */
static char *find_taken(const Graph *graph)
{
    char *taken = arena_array(graph->arena, char, graph->num_values + 1);
    for (const Node *node = graph->first; node; node = node->next)
        for (int k = 0; k < node->num_out; k++) {
            if (!node->out[k] || node->out[k]->sharing != STORAGE_UPDATE) continue;
            const Value *value = node->out[k]->storage;
            for (taken[value->id] = 1; value->sharing == STORAGE_VIEW; taken[value->id] = 1) value = value->storage;
        }
    return taken;
}

/* Keeps the first of equal nodes. A node stays if it updates memory in place, its output is updated in place, or it writes lasting
 * memory. */
static void merge_equal_nodes(Graph *graph)
{
    const char *taken = find_taken(graph);
    uint32_t    capacity = 64;
    while (capacity < 2u * (uint32_t)graph->num_nodes) capacity *= 2;
    Node **table = arena_array(graph->arena, Node *, capacity);
    for (Node *node = graph->first, *next; node; node = next) {
        next = node->next;
        bool pure = true;
        for (int k = 0; k < node->num_out; k++)
            pure = pure && (!node->out[k] || (node->out[k]->sharing != STORAGE_UPDATE && !taken[node->out[k]->id]));
        if (!pure || has_effect(node)) continue;
        uint32_t i = (uint32_t)node_hash(node) & (capacity - 1);
        while (table[i] && !same_computation(table[i], node)) i = (i + 1) & (capacity - 1);
        bool covered = table[i] != NULL;
        for (int k = 0; covered && k < node->num_out; k++) covered = !node->out[k] || table[i]->out[k];
        if (!table[i]) table[i] = node;
        if (!covered) continue;
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k]) graph_replace_uses(graph, node->out[k], table[i]->out[k], node);
        graph_remove_node(graph, node);
    }
}

Status pass_clean(PassContext *context, Graph **graph)
{
    (void)context;
    merge_equal_nodes(*graph);
    remove_dead_nodes(*graph);
    drop_unread_outputs(*graph);
    return OK;
}
