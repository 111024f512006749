/* autodiff: reverse-mode differentiation of the output "loss", ahead of time. Each op's own rule builds the backward nodes; the values that
 * these nodes read are those that the forward pass must save. A parameter's gradient is produced straight into its lasting memory; a second
 * use of the parameter or a later micro-step adds to it there. */
#include "ir/grad.h"
#include "ops/ops.h"
#include "passes/scalars.h"

#include <string.h>

/* Marks, in forward order, values that depend on a trained parameter. Codes are marked too, so that check_inputs refuses them. Whole
 * numbers, such as the indices of the largest elements, have no gradient: they are constants. */
static void find_wanted(GradBuilder *grad)
{
    for (int i = 0; i < grad->num_forward; i++) {
        const Value *value = grad->graph->values[i];
        if (value->kind == VALUE_PARAM && value->param) grad->wanted[i] = value->param->trained;
    }
    for (int i = 0; i < grad->num_forward; i++) { /* a packed weight is trained if its members are */
        const Value *value = grad->graph->values[i];
        if (value->sharing == STORAGE_MEMBER && grad->wanted[i]) grad->wanted[value->storage->id] = 1;
    }
    for (const Node *node = grad->graph->first; node; node = node->next) {
        bool any = false;
        for (int i = 0; i < node->num_in && !(node->op->flags & OP_STOPS); i++) any = any || grad_wanted(grad, node->in[i]);
        for (int k = 0; k < node->num_out; k++)
            if (node->out[k] && any && node->out[k]->type.dtype != DT_I32) grad->wanted[node->out[k]->id] = 1;
    }
}

/* Refuses an output that the loss reads but for which the op has no gradient: the rule would drop a path from the loss to a weight. */
static Status check_outputs(GradBuilder *grad, const Node *node)
{
    const char *source = node->source ? node->source : "graph";
    for (int k = 1; k < node->num_out; k++)
        FAIL_IF(grad_of(grad, node->out[k]) && !(node->op->grad_outputs >> k & 1), ERR_UNSUPPORTED,
                "%s: the loss reads %s, output %d of %s, and the op has no gradient for it", source, node->out[k]->name, k, node->op->name);
    return OK;
}

/* Refuses an input that depends on a trained weight where the rule expects a constant. */
static Status check_inputs(GradBuilder *grad, const Node *node)
{
    const char *source = node->source ? node->source : "graph";
    for (int i = 0; i < node->num_in; i++) {
        const Value *in = node->in[i];
        if (!grad_wanted(grad, in)) continue;
        bool constant = node->op->constants >> i & 1 || !(DT_SET(in->type.dtype) & DT_SET_FLOAT);
        FAIL_IF(constant, ERR_UNSUPPORTED, "%s: input %d of %s is %s, which depends on a trained weight, and the op has no gradient for it",
                source, i, node->op->name, in->name);
    }
    return OK;
}

/* ---- weights that are read as activations ---- */

/* Rules add up gradients of activations, and write gradients of weights (inputs in OpDef.params) to lasting memory. So where a weight is
 * read as an activation, or a second time by one node, the node reads a view of it instead: an activation whose gradient is then added to
 * the weight's. A weight has one view, right before its first such reader; the view is removed once its gradient is made. */

static bool is_trained_weight(const Value *value)
{
    return value && value->kind == VALUE_PARAM && !value->producer && value->param && value->param->trained;
}

static bool reads_as_activation(const Node *node, int index)
{
    if (!is_trained_weight(node->in[index]) || node->op->constants >> index & 1) return false;
    for (int k = 0; k < index; k++)
        if (node->in[k] == node->in[index]) return true;
    return !(node->op->params >> index & 1);
}

static Status add_view(Graph *graph, Value *weight, Node *reader, Node **out)
{
    pass_work_at(graph, reader);
    TRY(pass_reshape(graph, weight->name, weight, &weight->type, out));
    graph->cursor = NULL;
    return OK;
}

/* Makes nodes that read a trained weight as an activation read a view of it instead. views: by the weight's value id; NULL: the weight has
 * no view. */
static Status add_views(Graph *graph, Node **views)
{
    for (Node *node = graph->first; node; node = node->next)
        for (int i = 0; i < node->num_in; i++) {
            if (!reads_as_activation(node, i)) continue;
            Node **view = &views[node->in[i]->id];
            if (!*view) TRY(add_view(graph, node->in[i], node, view));
            node_set_input(node, i, (*view)->out[0]);
        }
    return OK;
}

static bool is_view_of_weight(Node *const *views, const Node *node)
{
    return node->op == &op_reshape && is_trained_weight(node->in[0]) && views[node->in[0]->id] == node;
}

/* *made becomes the gradient in the dtype in which the weight's gradient is summed: the input of the cast that rounded *made, if there is
 * such a cast, else a cast of *made. */
static Status unrounded(GradBuilder *grad, const Value *weight, Value **made)
{
    CastAttrs   attrs = {.dtype = grad_dw_dtype(grad, weight, (*made)->type.dtype)};
    const Node *maker = (*made)->producer;
    if (!attrs.dtype) return OK;
    if (maker->op != &op_cast || maker->in[0]->type.dtype != ATTR_TO_DTYPE(attrs.dtype))
        return grad_emit(grad, OP_CAST, &attrs, made, 1, ~0u, made);
    *made = maker->in[0];
    return OK;
}

/* Adds the view's gradient to the weight's, in its lasting memory. */
static Status view_backward(GradBuilder *grad, const Node *view)
{
    Value       *weight = view->in[0], *in[] = {grad_of(grad, view->out[0]), NULL}, *out;
    ColumnsAttrs all = {.cols = type_cols(&weight->type)};
    if (!in[0]) return OK;
    TRY(unrounded(grad, weight, &in[0]));
    in[1] = grad_accumulator(grad, weight);
    TRY(grad_emit(grad, OP_COLUMNS_BWD, &all, in, 2, ~0u, &out));
    grad_set(grad, weight, out);
    return OK;
}

static void remove_view(Graph *graph, Node *view)
{
    graph_replace_uses(graph, view->out[0], view->in[0], NULL);
    graph_remove_node(graph, view);
}

/* A rule makes the gradients of all its weights in the dtype of stored weights' gradients. The gradient of a computed weight is then cast
 * to that weight's own dtype. */
static Status round_computed(GradBuilder *grad, const Node *node)
{
    for (int i = 0; i < node->num_in; i++) {
        Value *in = node->in[i], *made = node->op->params >> i & 1 ? grad_of(grad, in) : NULL;
        if (!made || in->kind == VALUE_PARAM || made->type.dtype == in->type.dtype) continue;
        CastAttrs attrs = {.dtype = DTYPE_TO_ATTR(in->type.dtype)};
        TRY(grad_emit(grad, OP_CAST, &attrs, &made, 1, ~0u, &grad->grads[in->id]));
    }
    return OK;
}

static Status node_backward(GradBuilder *grad, const Node *node, const Value *loss)
{
    bool needed = false, leads = false;
    for (int k = 0; k < node->num_out; k++) needed = needed || (node->out[k] && (node->out[k] == loss || grad_of(grad, node->out[k])));
    for (int i = 0; i < node->num_in; i++) leads = leads || grad_wanted(grad, node->in[i]);
    if (!needed || !leads) return OK;
    FAIL_IF(!node->op->backward, ERR_UNSUPPORTED, "%s: op %s has no gradient, and %s needs one", node->source ? node->source : "graph",
            node->op->name, node->out[0] ? node->out[0]->name : "its output");
    TRY(check_outputs(grad, node));
    TRY(check_inputs(grad, node));
    pass_work_like(grad->graph, node);
    Status status = node->op->backward(grad, node);
    if (status != OK) return status_prefix(status, "gradient of %s", node->out[0] ? node->out[0]->name : node->op->name);
    return round_computed(grad, node);
}

/* Applies rules from the last node of the forward pass to the first. */
static Status apply_rules(GradBuilder *grad, const Value *loss, Node *const *views)
{
    Graph *graph = grad->graph;
    int    count = 0;
    Node **forward = arena_array(graph->arena, Node *, graph->num_nodes);
    for (Node *node = graph->first; node; node = node->next) forward[count++] = node;
    while (count--) {
        if (!is_view_of_weight(views, forward[count])) {
            TRY(node_backward(grad, forward[count], loss));
            continue;
        }
        pass_work_like(graph, forward[count]);
        TRY(view_backward(grad, forward[count]));
        remove_view(graph, forward[count]);
    }
    return OK;
}

static Status check_loss(const Value *loss)
{
    char text[64];
    FAIL_IF(!loss || !loss->producer, ERR_INVALID, "the graph computes no output \"loss\"");
    FAIL_IF(loss->type.dtype != DT_F32 || type_numel(&loss->type) != 1, ERR_INVALID,
            "output \"loss\": expected one f32 number, found %s of %s", type_text(&loss->type, text), loss->producer->op->name);
    return OK;
}

/* A constant; `number` must outlive the graph. */
static Value *add_number(Graph *graph, const char *name, const TensorType *type, const float *number)
{
    Value *value = graph_add_value(graph, VALUE_CONST, name, type);
    value->layer = -1;
    value->const_data = number;
    return value;
}

/* Index of the optional input to which the producer adds its output `value`; -1: the op has none. */
static int accumulator_of(const Value *value)
{
    const OpDef *op = value->producer->op;
    for (int i = 0; i < op->num_alias; i++)
        if (op->alias[i].accumulate && op->alias[i].out == value->out_index) return op->alias[i].in;
    return -1;
}

/* An output (the loss, a scalar) is summed over all micro-steps in one state: by the node that makes the output if that node can add, else
 * by a node after it. */
static Status settle_sum(GradBuilder *grad, const char *output, const char *state)
{
    static const float zero = 0;
    Graph             *graph = grad->graph;
    Value             *loss = graph_output(graph, output), *sum = graph_add_value(graph, VALUE_STATE, state, &loss->type);
    int                slot = accumulator_of(loss);
    if (grad->accumulate && slot >= 0 && !loss->producer->in[slot] && loss->num_uses == 1) {
        node_set_input(loss->producer, slot, sum);
        return OK;
    }
    if (!grad->accumulate && !loss->storage) {
        value_place_in(loss, sum, 0);
        return OK;
    }
    graph->layer = -1;
    graph->part = PART_NONE;
    graph->source = loss->producer->source;
    Value *in[] = {grad->accumulate ? sum : add_number(graph, "loss.zero", &loss->type, &zero), loss};
    Node  *add;
    TRY(graph_add_node(graph, graph->ops[OP_ADD], NULL, "loss.added", in, 2, ~0u, &add));
    value_place_in(add->out[0], sum, 0);
    graph_replace_uses(graph, loss, add->out[0], add);
    node_set_input(add, 1, loss);
    return OK;
}

/* ---- add(sum, fresh) -> the node that makes `fresh` adds into sum's memory ---- */

/* The free accumulate input of `value`'s producer, or -1. */
static int free_accumulator(const Value *value)
{
    const Node *node = value->producer;
    if (!node || !(node->flags & NODE_BACKWARD)) return -1;
    int slot = accumulator_of(value);
    return slot >= 0 && !node->in[slot] ? slot : -1;
}

/* Whether only `reader` reads the value, or a view of it, from `node` on. */
static bool unread_from(const Value *value, const Node *node, const Node *reader)
{
    for (const Use *use = value->first_use; use; use = use->next) {
        if (use->node == reader) continue;
        if (!use->node || !node_precedes(use->node, node)) return false;
        for (int k = 0; k < use->node->num_out; k++) {
            const Value *out = use->node->out[k];
            if (out && out->sharing == STORAGE_VIEW && out->storage == value && !unread_from(out, node, reader)) return false;
        }
    }
    return true;
}

/* Whether the value is made before `node`, and only `reader` reads its memory from `node` on. Older versions in that memory need no check:
 * a version whose memory a later version took over has no reader after that. */
static bool dies_at(const Value *value, const Root *roots, const Node *node, const Node *reader)
{
    const Value *root = roots[value->id].value;
    if (root->kind != VALUE_ACTIVATION || !root->producer) return false;
    if (!value->producer || !node_precedes(value->producer, node)) return false;
    while (value->sharing == STORAGE_VIEW) value = value->storage;
    return unread_from(value, node, reader);
}

static void merge_adds(Graph *graph)
{
    const Root *roots = graph_roots(graph); /* merging makes no activation's root a lasting value, nor the reverse */
    for (Node *add = graph->first, *next; add; add = next) {
        next = add->next;
        if (add->op->id != OP_ADD || !(add->flags & NODE_BACKWARD)) continue;
        for (int side = 1; side >= 0; side--) {
            Value *fresh = add->in[side], *sum = add->in[1 - side];
            int    slot = free_accumulator(fresh);
            if (slot < 0 || fresh->num_uses != 1 || !type_equal(&fresh->type, &sum->type)) continue;
            if (!dies_at(sum, roots, fresh->producer, add)) continue;
            node_set_input(fresh->producer, slot, sum);
            graph_replace_uses(graph, add->out[0], fresh, add);
            graph_remove_node(graph, add);
            break;
        }
    }
}

Status autodiff_graph(Graph *graph, bool accumulate, bool fp32_grads)
{
    static const float one = 1;
    GradBuilder        grad;
    Node             **views = arena_array(graph->arena, Node *, graph->num_values);
    TRY(add_views(graph, views));
    grad_init(&grad, graph, OP_ADD, accumulate, fp32_grads);
    find_wanted(&grad);
    const Value *loss = graph_output(graph, "loss");
    TRY(check_loss(loss));
    FAIL_IF(!grad.wanted[loss->id], ERR_INVALID, "nothing to train: the loss depends on no trained parameter");
    if (!(loss->producer->op->flags & OP_LOSS)) grad.grads[loss->id] = add_number(graph, "loss.one", &loss->type, &one);
    TRY(apply_rules(&grad, loss, views));
    TRY(settle_sum(&grad, "loss", STATE_LOSS));
    for (int k = 0; k < graph->num_outputs; k++) {
        const char       *name = graph->outputs[k].name;
        const TensorType *type = &graph->outputs[k].value->type;
        bool              is_scalar = type->dtype == DT_F32 && type->ndim == 1 && type->dim[0] == 1;
        if (is_scalar && strcmp(name, "loss") != 0) TRY(settle_sum(&grad, name, scalar_state(graph->arena, name)));
    }
    pass_work_nowhere(graph);
    remove_dead_nodes(graph);
    merge_adds(graph);
    return OK;
}

Status pass_autodiff(PassContext *context, Graph **graph)
{
    return autodiff_graph(*graph, context->program->spec.adds, context->options->fp32_grads);
}
