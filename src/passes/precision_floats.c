/* Floats of another width than the model's.
 *
 * Products of the blocks' linear layers (matmul_dtype, gradient_dtype: bf16): each operand is rounded or widened to that dtype once. Sums
 * are fp32. Results have the model's dtype. Products that another format (FP8) makes already are left alone.
 *
 * The backward pass of a bf16 model in fp32 (gradient_dtype: fp32): bf16 inputs of backward nodes are widened, so that all their results
 * are fp32. An output head that also makes the loss stays as it is: evaluation must find the same loss.
 *
 * Trained weights in another dtype than their products' (master_dtype, lora_dtype): weights are kept only in the dtype that the optimizer
 * updates, and nodes that read a weight get it in their own dtype. */
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/operands.h"

/* ---- a value in another dtype ---- */

static bool is_bf16(const Value *value)
{
    return value && value->type.dtype == DT_BF16;
}

/* Whether a value's cast is made at use. A trained weight's cast is, since it would otherwise live from the forward to the backward pass. A
 * frozen weight's wider cast is, since it would otherwise live as long as the session. */
static bool is_made_at_use(const Value *value, DType dtype)
{
    if (value->producer) return value->producer->flags & NODE_AT_USE;
    const Param *param = value->kind == VALUE_PARAM ? layers_param(value) : NULL;
    return param && (param->trained || dtype_info(dtype)->bits > dtype_info(value->type.dtype)->bits);
}

/* *out: `value` cast to `dtype` before `reader`. The cast is dropped and recomputed together with the node that makes `value`. */
static Status add_cast(Graph *graph, Value *value, DType dtype, Node *reader, Value **out)
{
    CastAttrs attrs = {.dtype = DTYPE_TO_ATTR(dtype)};
    Node     *node;
    pass_work_at(graph, reader);
    if (value->producer) graph->part = value->producer->part;
    TRY(graph_add_node(graph, &op_cast, &attrs, arena_printf(graph->arena, "%s.%s", value->name, dtype_info(dtype)->name), &value, 1, ~0u,
                       &node));
    node->flags |= (reader->flags & NODE_BACKWARD) | (is_made_at_use(value, dtype) ? NODE_AT_USE : 0);
    *out = node->out[0];
    return OK;
}

/* *out: `value` in `dtype`: the value itself, or its cast, which is made once. */
static Status in_dtype(const Precision *p, Value *value, DType dtype, Node *reader, Value **out)
{
    *out = value;
    if (!value || value->type.dtype == dtype) return OK;
    Value **made = &p->of[value->id].rounded;
    if (!*made) TRY(add_cast(p->graph, value, dtype, reader, made));
    *out = *made;
    return OK;
}

/* ---- products ---- */

/* Makes the same product of operands in `dtype`. The sum of y is rounded once, to y's dtype; dx and dw keep their dtypes. */
static Status rewrite_product(const Precision *p, const Product *product, DType dtype)
{
    Node       *node = product->node, *fresh;
    Value      *old = node->out[0], *in[3] = {NULL, NULL, node->in[2]}, *made;
    DType       was = old->type.dtype;
    bool        is_y = product->kind == PRODUCT_Y;
    LinearAttrs attrs = {.dtype = DTYPE_TO_ATTR(DT_F32)};
    if (!is_y) attrs = *(const LinearAttrs *)node->attrs;
    if (!is_y) *(product->kind == PRODUCT_DX ? &attrs.dtype : &attrs.dw_dtype) = DTYPE_TO_ATTR(was);
    for (int i = 0; i < 2; i++) TRY(in_dtype(p, node->in[i], dtype, node, &in[i]));
    if (is_y) TRY(in_dtype(p, in[2], dtype == DT_F32 ? DT_F32 : was, node, &in[2]));
    pass_work_at(p->graph, node);
    TRY(graph_add_node(p->graph, node->op, &attrs, old->name, in, 3, ~0u, &fresh));
    fresh->flags |= node->flags & NODE_BACKWARD;
    made = fresh->out[0];
    if (made->type.dtype != was) TRY(add_cast(p->graph, made, was, node, &made));
    value_take_place(p->graph, old, made);
    graph_remove_node(p->graph, node);
    p->plan->num_floats++;
    return OK;
}

static Status rewrite(void *context, const Product *product)
{
    const Precision *p = context;
    bool             is_y = product->kind == PRODUCT_Y;
    DType            dtype = is_y ? p->options->precision.forward : p->options->precision.backward;
    bool             is_asked = dtype == DT_BF16 || (is_y && dtype == DT_F32);
    bool             reads_other = product->node->in[0]->type.dtype != dtype || product->node->in[1]->type.dtype != dtype;
    return is_asked && reads_other ? rewrite_product(p, product, dtype) : OK;
}

/* ---- the backward pass in fp32 ---- */

static bool is_read_forward(const Node *node)
{
    for (int k = 0; k < node->num_out; k++)
        for (const Use *use = node->out[k] ? node->out[k]->first_use : NULL; use; use = use->next)
            if (!use->node || !(use->node->flags & NODE_BACKWARD)) return true;
    return false;
}

/* Whether the node makes a new version of input `i`. */
static bool is_taken(const Node *node, int i)
{
    for (int k = 0; k < node->op->num_alias; k++)
        if (node->op->alias[k].in == i) return true;
    return false;
}

static Status widen_inputs(const Precision *p, Node *node, Value **in)
{
    for (int i = 0; i < node->num_in; i++) {
        in[i] = node->in[i];
        if (!is_bf16(in[i])) continue;
        TRY(is_taken(node, i) ? add_cast(p->graph, in[i], DT_F32, node, &in[i]) : in_dtype(p, in[i], DT_F32, node, &in[i]));
    }
    return OK;
}

static bool has_bf16(const Node *node)
{
    bool any = false;
    for (int i = 0; i < node->num_in; i++) any = any || is_bf16(node->in[i]);
    for (int k = 0; k < node->num_out; k++) any = any || is_bf16(node->out[k]);
    return any;
}

/* Replaces the node by one in fp32. A node that only rounds a gradient to bf16 is removed. */
static Status widen_node(const Precision *p, Node *node)
{
    Value *in[NODE_MAX_IN];
    Node  *made;
    TRY(widen_inputs(p, node, in));
    if (node->op == &op_cast && is_bf16(node->out[0]) && in[0]->type.dtype == DT_F32) {
        graph_replace_uses(p->graph, node->out[0], in[0], NULL);
        graph_remove_node(p->graph, node);
        return OK;
    }
    pass_work_at(p->graph, node);
    TRY(graph_add_node(p->graph, node->op, node->attrs, node_first_out(node)->name, in, node->num_in, node_wanted(node), &made));
    made->flags |= node->flags;
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) value_take_place(p->graph, node->out[k], made->out[k]);
    graph_remove_node(p->graph, node);
    return OK;
}

static Status widen_backward(const Precision *p)
{
    for (Node *node = p->graph->first, *next; node; node = next) {
        next = node->next;
        if (node->flags & NODE_BACKWARD && has_bf16(node) && !is_read_forward(node)) TRY(widen_node(p, node));
    }
    return OK;
}

/* ---- trained weights in another dtype than their products' ---- */

/* The dtype that a weight is kept in; its own if nothing else is asked for. */
static DType kept_dtype(const Precision *p, const Value *weight)
{
    const CompileOptions *options = p->options;
    const Param          *param = weight->kind == VALUE_PARAM && !weight->producer && !weight->storage ? layers_param(weight) : NULL;
    DType                 dtype = weight->type.dtype;
    if (!param || !param->trained || !options->master_weights) return dtype;
    if (options->master_dtype == DT_BF16) return dtype == DT_F32 ? DT_BF16 : dtype;
    bool is_multiplied = dtype == DT_BF16 && options->precision.forward == DT_F32 && layers_has_weight(&p->layers, weight);
    return is_multiplied ? DT_F32 : dtype;
}

static void set_dtype(Value *value, DType dtype)
{
    value->type.dtype = dtype;
    if (value->param) value->param->type.dtype = dtype;
}

/* Makes nodes read weights in the dtype that the weights had before (`was`, by id of the first `count` values; DT_COUNT: unchanged). Casts
 * read the weights directly; a cast that changes nothing any more is removed. */
static Status read_kept(const Precision *p, const DType *was, int count)
{
    for (Node *node = p->graph->first; node; node = node->next)
        for (int i = 0; i < node->num_in && node->op != &op_cast; i++) {
            Value *weight = node->in[i], *made;
            if (!weight || weight->id >= count || was[weight->id] == DT_COUNT) continue;
            TRY(in_dtype(p, weight, was[weight->id], node, &made));
            node_set_input(node, i, made);
        }
    for (Node *node = p->graph->first, *next; node; node = next) {
        next = node->next;
        Value *weight = node->op == &op_cast ? node->in[0] : NULL;
        if (!weight || weight->id >= count || was[weight->id] == DT_COUNT || weight->type.dtype != node->out[0]->type.dtype) continue;
        graph_replace_uses(p->graph, node->out[0], weight, NULL);
        graph_remove_node(p->graph, node);
    }
    return OK;
}

static Status keep_weights(Precision *p)
{
    Graph *graph = p->graph;
    int    count = graph->num_values;
    DType *was = arena_array(graph->arena, DType, count);
    for (int i = 0; i < count; i++) was[i] = DT_COUNT;
    for (int i = 0; i < count; i++) {
        Value *weight = graph->values[i];
        DType  own = weight->type.dtype, kept = kept_dtype(p, weight);
        if (kept == own) continue;
        was[i] = own;
        set_dtype(weight, kept);
        for (Value *member = weight->first_member; member; member = member->next_member) {
            was[member->id] = own;
            set_dtype(member, kept);
        }
    }
    operands_start(p);
    return read_kept(p, was, count);
}

Status precision_floats(Precision *p)
{
    operands_start(p);
    TRY(layers_walk(&p->layers, rewrite, p));
    if (p->options->precision.backward == DT_F32) TRY(widen_backward(p));
    return keep_weights(p);
}
