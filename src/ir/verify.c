/* graph_verify: invariants of any graph between two passes. A failure is a bug of the pass that ran last, so the error is ERR_INTERNAL
 * and quotes the node. */
#include "ir/graph_internal.h"

#include <string.h>

typedef struct Verify {
    const Graph *graph;
    char        *defined; /* by value id: it is from outside, or an earlier node has made it */
    char        *dead;    /* by value id: a later version took over its memory */
} Verify;

static Status node_failed(const Node *node, const char *what, const Value *value)
{
    StrBuf text = {0};
    node_print(node, &text); /* its text ends with a new line */
    status_fail(ERR_INTERNAL, "graph: %s%s%s: %.*s", what, value ? " " : "", value ? value->name : "", (int)text.len - 1, text.data);
    strbuf_deinit(&text);
    return ERR_INTERNAL;
}

/* Whether a later version has overwritten the value, or the value that it is a view or a member of. */
static bool is_dead(const Verify *v, const Value *value)
{
    while (!v->dead[value->id] && (value->sharing == STORAGE_MEMBER || value->sharing == STORAGE_VIEW)) value = value->storage;
    return v->dead[value->id];
}

/* Marks the value and the values it is a view of: a later version took over their memory. */
static void mark_dead(Verify *v, const Value *value)
{
    v->dead[value->id] = 1;
    while (value->sharing == STORAGE_VIEW) v->dead[(value = value->storage)->id] = 1;
}

static bool is_outside(const Value *value)
{
    return !value->producer && value->kind != VALUE_ACTIVATION;
}

static bool lies_within(const Value *value)
{
    const TensorType *type = &value->type, *whole = &value->storage->type;
    return type->dtype == whole->dtype && value->offset >= 0 && value->offset <= type_numel(whole) - type_numel(type) &&
           value->offset % dtype_info(type->dtype)->block == 0;
}

/* Checks an output's storage: views and updates as the op declares, homes in memory from outside. */
static Status verify_storage(const Node *node, const Value *out)
{
    Value  *storage;
    Sharing sharing = node_sharing(node, out->out_index, &storage);
    if (storage || out->sharing != STORAGE_HOME) {
        if (out->sharing != sharing || out->storage != storage || out->offset)
            return node_failed(node, "storage differs from what the op says:", out);
        if (storage && (type_numel(&storage->type) != type_numel(&out->type) || storage->type.dtype != out->type.dtype))
            return node_failed(node, "alias of another size:", storage);
        return OK;
    }
    if (!is_outside(out->storage)) return node_failed(node, "a home is memory from outside, unlike", out->storage);
    if (!lies_within(out)) return node_failed(node, "output leaves its home, or starts within a block of it:", out->storage);
    return OK;
}

static Status verify_node(Verify *v, const Node *node)
{
    for (int i = 0; i < node->num_in; i++) {
        const Value *in = node->in[i];
        if (!in) continue;
        if (in->id >= v->graph->num_values || v->graph->values[in->id] != in) return node_failed(node, "foreign value", in);
        if (!v->defined[in->id]) return node_failed(node, "read before it is produced:", in);
        if (is_dead(v, in)) return node_failed(node, "read of memory that a later version took over:", in);
    }
    if (node->flags & NODE_AT_USE && node->flags & NODE_ONCE) return node_failed(node, "made once and at use", NULL);
    TensorType types[NODE_MAX_OUT];
    if (node_infer(node, types) != OK) {
        char message[512];
        strncpy(message, status_message(), sizeof message - 1);
        message[sizeof message - 1] = 0;
        return node_failed(node, message, NULL);
    }
    bool is_wanted = false;
    for (int k = 0; k < node->num_out; k++) {
        Value *out = node->out[k];
        if (!out) continue;
        is_wanted = true;
        if (out->producer != node || out->out_index != k) return node_failed(node, "output not its own:", out);
        if (v->defined[out->id]) return node_failed(node, "produced twice:", out);
        if (!type_equal(&out->type, &types[k])) return node_failed(node, "type differs from what the op infers:", out);
        TRY(verify_storage(node, out));
        bool overwrites = out->sharing == STORAGE_UPDATE || out->sharing == STORAGE_HOME;
        if (overwrites && node->flags & NODE_AT_USE) return node_failed(node, "made at use in memory that is another's:", out->storage);
        if (overwrites) mark_dead(v, out->storage);
        v->defined[out->id] = 1;
    }
    if (!is_wanted) return node_failed(node, "none of its outputs is wanted", NULL);
    return OK;
}

/* A node made at use may run again at any time, so none of its inputs may have a later version. */
static Status verify_at_use(Verify *v, const Node *node)
{
    for (int i = 0; i < node->num_in && node->flags & NODE_AT_USE; i++) {
        const Value *in = node->in[i];
        bool         again = in && in->producer && in->producer->flags & NODE_AT_USE;
        if (in && !again && is_dead(v, in)) return node_failed(node, "made at use from memory that a later version took over:", in);
    }
    return OK;
}

static Status verify_value(const Graph *graph, const Value *value, int index)
{
    FAIL_IF(value->id != index, ERR_INTERNAL, "graph: value %s has id %d at index %d", value->name, value->id, index);
    FAIL_IF(value->type.ndim < 1 || value->type.ndim > TENSOR_MAX_DIMS || type_check(&value->type) != OK, ERR_INTERNAL,
            "graph: value %s has no proper type", value->name);
    FAIL_IF(graph_find(graph, value->name) != value, ERR_INTERNAL, "graph: two values named %s", value->name);
    const Value *storage = value->storage;
    FAIL_IF(!storage != (value->sharing == STORAGE_OWN), ERR_INTERNAL, "graph: value %s has %s", value->name,
            storage ? "memory of its own and storage" : "neither memory of its own nor storage");
    if (!storage) return OK;
    FAIL_IF(storage->id >= graph->num_values || graph->values[storage->id] != storage, ERR_INTERNAL,
            "graph: storage of %s is the foreign value %s", value->name, storage->name);
    FAIL_IF(value->sharing != STORAGE_VIEW && value->kind != storage->kind, ERR_INTERNAL,
            "graph: value %s is of another kind than its storage %s", value->name, storage->name);
    if (value->sharing != STORAGE_MEMBER) { /* an output: verify_storage checks it */
        FAIL_IF(!value->producer, ERR_INTERNAL, "graph: value %s from outside has the storage of an output", value->name);
        return OK;
    }
    FAIL_IF(storage->storage || !is_outside(storage) || !is_outside(value), ERR_INTERNAL,
            "graph: view %s of %s: both must be from outside, and the base no view", value->name, storage->name);
    FAIL_IF(!lies_within(value), ERR_INTERNAL, "graph: view %s leaves its base %s, or starts within a block of it", value->name,
            storage->name);
    return OK;
}

/* Checks the lists of uses: every listed use is a real reader, and every reader is listed. */
static Status verify_uses(const Graph *graph)
{
    int64_t listed = 0, connected = graph->num_outputs;
    for (int i = 0; i < graph->num_values; i++) {
        const Value *value = graph->values[i];
        int          count = 0;
        for (const Use *use = value->first_use, *before = NULL; use; before = use, use = use->next, count++) {
            bool is_reader = use->node ? use == &use->node->uses[use->index] && use->node->in[use->index] == value
                                       : use == graph->outputs[use->index].use && graph->outputs[use->index].value == value;
            FAIL_IF(!is_reader || use->prev != before || count == value->num_uses, ERR_INTERNAL, "graph: list of uses of %s broken",
                    value->name);
        }
        FAIL_IF(count != value->num_uses, ERR_INTERNAL, "graph: list of uses of %s broken", value->name);
        listed += count;
    }
    for (const Node *node = graph->first; node; node = node->next)
        for (int i = 0; i < node->num_in; i++) connected += node->in[i] != NULL;
    FAIL_IF(listed != connected, ERR_INTERNAL, "graph: %lld uses listed, %lld counted", (long long)listed, (long long)connected);
    return OK;
}

static Status verify_members(const Graph *graph)
{
    int64_t listed = 0, views = 0;
    for (int i = 0; i < graph->num_values; i++) {
        const Value *base = graph->values[i];
        views += base->sharing == STORAGE_MEMBER;
        for (const Value *member = base->first_member; member; member = member->next_member, listed++)
            FAIL_IF(member->storage != base ||
                        (member->next_member ? !member_precedes(member, member->next_member) : member != base->last_member),
                    ERR_INTERNAL, "graph: list of members of %s broken", base->name);
    }
    FAIL_IF(listed != views, ERR_INTERNAL, "graph: %lld members listed, %lld counted", (long long)listed, (long long)views);
    return OK;
}

Status graph_verify_at(const Graph *graph, const Node **out_node, const Value **out_value)
{
    Verify v = {.graph = graph};
    v.defined = arena_array(graph->arena, char, graph->num_values + 1);
    v.dead = arena_array(graph->arena, char, graph->num_values + 1);
    for (int i = 0; i < graph->num_values; i++) {
        *out_value = graph->values[i]->producer ? NULL : graph->values[i];
        *out_node = graph->values[i]->producer;
        TRY(verify_value(graph, graph->values[i], i));
        v.defined[i] = graph->values[i]->kind != VALUE_ACTIVATION && !graph->values[i]->producer;
    }
    *out_value = NULL;
    int count = 0;
    for (const Node *node = graph->first; node; node = node->next, count++) {
        *out_node = node;
        FAIL_IF(node->next && (node->next->prev != node || !node_precedes(node, node->next)), ERR_INTERNAL, "graph: node list broken");
        TRY(verify_node(&v, node));
    }
    for (const Node *node = graph->first; node; node = node->next) {
        *out_node = node;
        TRY(verify_at_use(&v, node));
    }
    *out_node = NULL;
    FAIL_IF(count != graph->num_nodes, ERR_INTERNAL, "graph: %d nodes listed, %d counted", count, graph->num_nodes);
    for (int i = 0; i < graph->num_outputs; i++)
        FAIL_IF(!v.defined[graph->outputs[i].value->id], ERR_INTERNAL, "graph: output %s is never produced", graph->outputs[i].name);
    TRY(verify_uses(graph));
    return verify_members(graph);
}

Status graph_verify(const Graph *graph)
{
    const Node  *node;
    const Value *value;
    return graph_verify_at(graph, &node, &value);
}
