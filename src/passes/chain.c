/* chain: adjacent element-wise ops become the steps of one op (ops/elementwise/chain.h): values between the steps aren't written to memory,
 * unless other ops read them. The pass runs after autodiff, so that forward and backward chains are joined alike. It runs after recompute,
 * so that chains don't change which values are kept for the backward pass. Bits don't change.
 *
 * The last op of a chain stays in place, and earlier ones move to it. So that peak memory doesn't grow, an op moves only if its result
 * isn't written, or if its inputs live on anyway. */
#include "ops/elementwise/chain.h"

#include "ops/ops.h"
#include "passes/pass.h"

#include <string.h>

enum { FARTHEST = 24 }; /* most nodes that an op moves past: compile time grows with them */

typedef struct Group {
    Node       *node[CHAIN_MAX_STEPS]; /* the group's nodes, the last one first */
    int         count;
    const char *named; /* by node id: whether some node's `after` names the node */
} Group;

static bool has_node(const Group *group, const Node *node)
{
    for (int i = 0; i < group->count; i++)
        if (group->node[i] == node) return true;
    return false;
}

/* Whether the node can be a step: its inputs and output are floats, the output has memory of its own, and its elements can be counted in 32
 * bits. */
static bool can_be_step(const Group *group, const Node *node)
{
    if (!node->op->tile || chain_code(node->op) < 0 || node->num_after || group->named[node->id] || !node->out[0]) return false;
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i] && !(DT_SET(node->in[i]->type.dtype) & DT_SET_DECODE)) return false;
    const Value *out = node->out[0];
    return type_numel(&out->type) <= INT32_MAX && out->kind == VALUE_ACTIVATION && out->sharing == STORAGE_OWN &&
           out->space == SPACE_DEVICE && DT_SET(out->type.dtype) & DT_SET_DECODE;
}

static bool run_together(const Node *a, const Node *b)
{
    enum { SAME = NODE_BACKWARD | NODE_ONCE | NODE_AT_USE };
    return !((a->flags ^ b->flags) & SAME) && a->stream == b->stream && a->layer == b->layer &&
           type_same_dims(&a->out[0]->type, &b->out[0]->type);
}

/* Whether a node outside the group reads the value before the group's last node; *in_group: the group reads it. */
static bool read_before(const Group *group, const Value *value, bool *in_group)
{
    *in_group = false;
    for (const Use *use = value->first_use; use; use = use->next) {
        if (use->node && has_node(group, use->node))
            *in_group = true;
        else if (use->node && node_precedes(use->node, group->node[0]))
            return true;
    }
    return false;
}

static bool read_outside(const Group *group, const Value *value)
{
    for (const Use *use = value->first_use; use; use = use->next)
        if (!use->node || !has_node(group, use->node)) return true;
    return false;
}

/* Whether the value's memory is alive at the group's end even if no node moves there. */
static bool lives_on(const Group *group, Value *value)
{
    if (value_root(value, NULL)->kind != VALUE_ACTIVATION) return true;
    for (const Use *use = value->first_use; use; use = use->next)
        if (!use->node || has_node(group, use->node) || node_precedes(group->node[0], use->node)) return true;
    return false;
}

/* Whether a node between `node` and the group's end writes memory that `node` reads. */
static bool overwritten(const Group *group, const Node *node)
{
    for (const Node *between = node->next; between != group->node[0]; between = between->next) {
        for (int k = 0; k < between->num_out && !has_node(group, between); k++) {
            Value *out = between->out[k];
            if (!out || (out->sharing != STORAGE_UPDATE && out->sharing != STORAGE_HOME)) continue;
            for (int i = 0; i < node->num_in; i++)
                if (node->in[i] && value_root(node->in[i], NULL) == value_root(out, NULL)) return true;
        }
    }
    return false;
}

/* Whether all launches between the node and the group's end belong to the group: then moving it lengthens no input's life. */
static bool is_next(const Group *group, const Node *node)
{
    for (const Node *between = node->next; between != group->node[0]; between = between->next)
        if (!has_node(group, between) && !(between->op->flags & OP_VIEW)) return false;
    return true;
}

/* Whether moving the node doesn't raise peak memory: its inputs are held longer, but at least as much is freed because its result isn't
 * written. */
static bool is_light(const Group *group, const Node *node)
{
    if (is_next(group, node)) return true;
    int64_t held = 0, freed = read_outside(group, node->out[0]) ? 0 : type_bytes(&node->out[0]->type);
    for (int i = 0; i < node->num_in; i++)
        if (node->in[i] && !lives_on(group, node->in[i])) held += type_bytes(&node->in[i]->type);
    return held <= freed;
}

/* Whether the chain of the group and `node` has no more steps, inputs and outputs than a chain may have. */
static bool has_room(const Group *group, const Node *node)
{
    Value *seen[CHAIN_MAX_STEPS * CHAIN_OPERANDS];
    Group  all = *group;
    int    ins = 0, outs = 0;
    if (all.count == CHAIN_MAX_STEPS) return false;
    all.node[all.count++] = (Node *)node;
    for (int n = 0; n < all.count; n++) {
        outs += n == 0 || read_outside(&all, all.node[n]->out[0]);
        for (int i = 0; i < all.node[n]->num_in; i++) {
            Value *in = all.node[n]->in[i];
            bool   known = !in || (in->producer && has_node(&all, in->producer));
            for (int k = 0; k < ins; k++) known = known || seen[k] == in;
            if (!known) seen[ins++] = in;
        }
    }
    return ins <= CHAIN_MAX_IN && outs <= CHAIN_MAX_OUT;
}

static bool joins(const Group *group, const Node *node)
{
    bool in_group;
    if (!can_be_step(group, node) || !run_together(node, group->node[0])) return false;
    if (read_before(group, node->out[0], &in_group) || !in_group) return false;
    return !overwritten(group, node) && is_light(group, node) && has_room(group, node);
}

/* The op's one attribute; 0: the op has none. */
static double number_of(const Node *node)
{
    const AttrDef *a = node->op->attrs;
    if (!a) return 0;
    const char *at = (const char *)node->attrs + a->offset;
    if (a->type == ATTR_TYPE_FLOAT) return *(const double *)(const void *)at;
    return a->type == ATTR_TYPE_BOOL && *(const bool *)(const void *)at;
}

/* Index of an operand: the step that makes the value, or an input, which is added if it is new. */
static int operand_of(const Group *group, Value *value, Value **in, int *num_in)
{
    if (!value) return CHAIN_NONE;
    for (int i = 0; i < group->count; i++)
        if (group->node[i]->out[0] == value) return CHAIN_RESULT + group->count - 1 - i;
    int k = 0;
    while (k < *num_in && in[k] != value) k++;
    in[k] = value;
    if (k == *num_in) ++*num_in;
    return k;
}

/* Puts one chain node where the group's last node is. */
static Status replace_group(Graph *graph, const Group *group)
{
    ChainAttrs attrs = {0};
    Value     *in[CHAIN_MAX_IN] = {0};
    Node      *last = group->node[0], *chain, *maker[CHAIN_MAX_OUT] = {last};
    int        num_in = 0, num_out = 1;
    for (int i = group->count - 1; i >= 0; i--) {
        Node     *node = group->node[i];
        ChainStep step = {
            .code = chain_code(node->op), .dtype = (int)node->out[0]->type.dtype, .number = (float)number_of(node), .out = -1};
        for (int k = 0; k < CHAIN_OPERANDS; k++)
            step.operand[k] = k < node->num_in ? operand_of(group, node->in[k], in, &num_in) : CHAIN_NONE;
        if (i == 0) step.out = 0;
        if (i && read_outside(group, node->out[0])) maker[step.out = num_out++] = node;
        chain_add_step(&attrs, step);
    }
    pass_work_at(graph, last);
    TRY(graph_add_node(graph, &op_chain, &attrs, last->out[0]->name, in, CHAIN_MAX_IN, ~0u, &chain));
    chain->flags |= last->flags;
    chain->stream = last->stream;
    for (int k = 0; k < num_out; k++) graph_replace_uses(graph, maker[k]->out[0], chain->out[k], last->next);
    for (int k = 0; k < group->count; k++) graph_remove_node(graph, group->node[k]);
    return OK;
}

static bool is_elementwise(const Node *node)
{
    return node->op->tile || node->op == &op_chain;
}

const char *chain_apart(const Node *maker, const Node *reader)
{
    const Value *made = node_first_out(maker), *result = node_first_out(reader);
    if (!is_elementwise(maker) || !is_elementwise(reader) || !made || !result) return NULL;
    if (!type_same_dims(&made->type, &result->type)) return "they have other dims";
    if (maker->layer != reader->layer) return "they are of two layers";
    if ((maker->flags ^ reader->flags) & NODE_BACKWARD) return "one is of the forward pass, the other of the backward pass";
    if (made->sharing != STORAGE_OWN || result->sharing != STORAGE_OWN) return "one writes into lasting memory";
    return "something between them reads it, more memory would be held, the chain would be too long, or `fusion` leaves chains out";
}

static const char *find_named(const Graph *graph)
{
    char *named = arena_array(graph->arena, char, graph->next_node_id + 1);
    for (const Node *node = graph->first; node; node = node->next)
        for (int i = 0; i < node->num_after; i++) named[node->after[i]->id] = 1;
    return named;
}

Status pass_chain(PassContext *context, Graph **graph)
{
    const char *named = find_named(*graph);
    if (context->options->no_fuse >> FUSE_CHAIN & 1) return OK;
    for (Node *last = (*graph)->last, *prev; last; last = prev) {
        Group group = {{last}, 1, named};
        prev = last->prev;
        if (!can_be_step(&group, last)) continue;
        int past = 0;
        for (Node *node = prev; node && past < FARTHEST; node = node->prev) {
            if (joins(&group, node))
                group.node[group.count++] = node;
            else
                past++;
        }
        while (prev && has_node(&group, prev)) prev = prev->prev;
        if (group.count > 1) TRY(replace_group(*graph, &group));
    }
    return OK;
}
