/* Statements: each writes to r->out. What is captured (macros, set blocks) is the tail of r->out, cut off afterwards. */
#include "text/template/exec.h"

#include "text/template/open.h"

#include <string.h>

static Frame *frame_new(Render *r, Frame *parent, uint32_t num_slots)
{
    Frame *frame = arena_alloc(&r->arena, sizeof(Frame) + num_slots * sizeof(Value));
    frame->parent = parent;
    return frame;
}

static Value *slot_of(Render *r, VarRef var)
{
    Frame *frame = r->frame;
    for (uint16_t hops = var.hops; hops; hops--) frame = frame->parent;
    return &frame->slots[var.slot];
}

void scope_enter(Render *r, const Scope *scope)
{
    for (uint32_t i = 0; i < scope->count; i++) {
        const ScopeLoad *load = &scope->loads[i];
        Value           *slot = &r->frame->slots[load->slot];
        switch (load->kind) {
        case LOAD_RESOLVE: *slot = r->context[load->name]; break;
        case LOAD_ALIAS: *slot = *slot_of(r, load->alias); break;
        default: *slot = (Value){ 0 };
        }
    }
}

Status capture_end(Render *r, size_t start, Value *out)
{
    if (r->open) return open_capture(r, start, out);
    *out = value_copy_text(r, strbuf_cstr(&r->out) + start, r->out.len - start);
    r->out.len = start;
    return OK;
}

static Status assign_namespace(Render *r, const Node *target, Value value)
{
    Value object = *slot_of(r, target->var);
    Str   name = r->tmpl->names.names[target->index];
    if (object.type != V_NAMESPACE) return render_fail(r, "cannot assign attribute on non-namespace object");
    return dict_set(r, object.dict, value_text(name.data, name.len), value);
}

Status assign_target(Render *r, const Node *target, Value value)
{
    if (target->kind == N_NAME) {
        *slot_of(r, target->var) = value;
        return OK;
    }
    if (target->kind == N_NSREF) return assign_namespace(r, target, value);
    List list;
    if (!value_is_iterable(value)) return render_fail(r, "cannot unpack non-iterable %s object", value_type_name(value));
    if (value.type == V_LIST || value.type == V_TUPLE) {
        list = *value.list;
    } else {
        TRY(value_to_list(r, value, &list));
    }
    if (list.count != target->items.count)
        return render_fail(r, "%u values to unpack into %u names", list.count, target->items.count);
    for (uint32_t i = 0; i < list.count; i++) TRY(assign_target(r, target->items.items[i], list.items[i]));
    return OK;
}

static bool names_namespace(const Node *target)
{
    if (target->kind == N_NSREF) return true;
    for (uint32_t i = 0; i < target->items.count; i++)
        if (names_namespace(target->items.items[i])) return true;
    return false;
}

/* Namespace targets are checked before the value is computed. */
static Status check_namespaces(Render *r, const Node *target)
{
    if (target->kind == N_NSREF && slot_of(r, target->var)->type != V_NAMESPACE)
        return render_fail(r, "cannot assign attribute on non-namespace object");
    for (uint32_t i = 0; i < target->items.count; i++) TRY(check_namespaces(r, target->items.items[i]));
    return OK;
}

static Status exec_set(Render *r, const Node *node)
{
    Value value;
    if (names_namespace(node->a)) TRY(check_namespaces(r, node->a));
    TRY(eval(r, node->b, &value));
    return assign_target(r, node->a, value);
}

static Status exec_print(Render *r, const Node *node)
{
    for (uint32_t i = 0; i < node->items.count; i++) {
        Value value;
        TRY(eval(r, node->items.items[i], &value));
        r->line = node->line;
        TRY(value.type == V_OPEN ? open_print(r, value) : value_append_str(r, &r->out, value));
    }
    return OK;
}

static Status exec_if(Render *r, const Node *node)
{
    for (; node; node = node->b) {
        Value condition;
        bool  truth;
        r->line = node->line;
        TRY(eval(r, node->a, &condition));
        TRY(value_truth(r, condition, &truth));
        if (truth) return exec_nodes(r, &node->body);
        if (!node->b) return exec_nodes(r, &node->orelse);
    }
    return OK;
}

static Value macro_value(Render *r, const Node *node)
{
    Macro *macro = arena_new(&r->arena, Macro);
    *macro = (Macro){ node, r->frame };
    return (Value){ .type = V_MACRO, .macro = macro };
}

/* The result of a call or filter block; Jinja joins it to the text as it is. */
static Status write_text(Render *r, Value value)
{
    if (value.type == V_OPEN) return open_print(r, value);
    if (value.type != V_STRING) return render_fail(r, "a block gives %s where a text is needed", value_type_name(value));
    strbuf_append(&r->out, value.text, value.len);
    return OK;
}

static Status exec_call_block(Render *r, const Node *node)
{
    Value value;
    TRY(eval_call(r, node->a, macro_value(r, node), &value));
    return write_text(r, value);
}

static Status exec_set_block(Render *r, const Node *node)
{
    size_t start = r->out.len;
    Value  value;
    scope_enter(r, node->scope);
    r->captures++;
    TRY(exec_nodes(r, &node->body));
    r->captures--;
    TRY(capture_end(r, start, &value));
    if (r->flow != FLOW_NEXT) return OK;
    r->line = node->line;
    TRY(eval_filter_chain(r, node->b, value, &value));
    if (names_namespace(node->a)) TRY(check_namespaces(r, node->a));
    return assign_target(r, node->a, value);
}

static Status exec_filter_block(Render *r, const Node *node)
{
    size_t start = r->out.len;
    Value  value;
    scope_enter(r, node->scope);
    r->captures++;
    TRY(exec_nodes(r, &node->body));
    r->captures--;
    TRY(capture_end(r, start, &value));
    if (r->flow != FLOW_NEXT) return OK;
    r->line = node->line;
    TRY(eval_filter_chain(r, node->a, value, &value));
    return write_text(r, value);
}

static Status exec_with(Render *r, const Node *node)
{
    scope_enter(r, node->scope);
    for (uint32_t i = 0; i < node->items.count; i++) {
        Value value;
        TRY(eval(r, node->values.items[i], &value));
        TRY(assign_target(r, node->items.items[i], value));
    }
    return exec_nodes(r, &node->body);
}

static Status exec_generation(Render *r, const Node *node)
{
    size_t begin = r->out.len;
    if (node->uses_caller) *slot_of(r, node->caller) = value_hint("No caller defined");
    if (node->uses_kwargs) *slot_of(r, node->kwargs) = (Value){ .type = V_DICT, .dict = arena_new(&r->arena, Dict) };
    if (node->uses_varargs) *slot_of(r, node->varargs) = value_list(r, V_TUPLE, NULL, 0);
    scope_enter(r, node->scope);
    TRY(exec_nodes(r, &node->body));
    if (r->captures) return OK;
    if (r->num_spans == r->spans_capacity) {
        size_t        capacity = r->spans_capacity ? r->spans_capacity * 2 : 8;
        TemplateSpan *spans = arena_array(&r->arena, TemplateSpan, capacity);
        if (r->num_spans) memcpy(spans, r->spans, r->num_spans * sizeof *spans);
        r->spans = spans;
        r->spans_capacity = capacity;
    }
    r->spans[r->num_spans++] = (TemplateSpan){ begin, r->out.len };
    return OK;
}

/* ---- loops ---- */

static Status exec_loop(Render *r, LoopState *loop)
{
    const Node *node = loop->node;
    bool        empty = true;
    for (;;) {
        bool  done;
        Value item;
        TRY(loop_next(r, loop, &item, &done));
        if (done) break;
        TRY(assign_target(r, node->a, item));
        *slot_of(r, node->var) = (Value){ .type = V_LOOP, .loop = loop };
        scope_enter(r, node->scope);
        TRY(exec_nodes(r, &node->body));
        Flow flow = r->flow;
        r->flow = FLOW_NEXT;
        if (flow == FLOW_NEXT) empty = false; /* as Jinja has it: a body left by break or continue doesn't count */
        if (flow == FLOW_BREAK) break;
    }
    if (!empty || !node->orelse.count) return OK;
    scope_enter(r, node->else_scope);
    return exec_nodes(r, &node->orelse);
}

static Status exec_for(Render *r, const Node *node)
{
    LoopState *loop = arena_new(&r->arena, LoopState);
    Value      source;
    TRY(eval(r, node->b, &source));
    r->line = node->line;
    loop->node = node;
    loop->frame = r->frame;
    loop->index0 = -1;
    loop->length = -1;
    TRY(iterator_init(r, &loop->it, source));
    Frame *frame = r->frame;
    if (node->recursive) r->frame = frame_new(r, frame, node->scope->num_slots);
    loop->body_frame = r->frame;
    TRY(exec_loop(r, loop));
    r->frame = frame;
    return OK;
}

/* loop(items) inside a recursive loop: its body's text for these items. */
Status loop_call(Render *r, LoopState *outer, const Args *args, Value *out)
{
    if (!outer->node->recursive)
        return render_fail(r, "the loop must have the 'recursive' marker to be called recursively");
    if (args->count != 1 || args->num_keywords) return render_fail(r, "loop() takes one argument");
    if (r->depth >= RENDER_MAX_DEPTH - 8) return render_fail(r, "evaluation is nested too deeply");
    LoopState *loop = arena_new(&r->arena, LoopState);
    Frame     *frame = r->frame;
    size_t     start = r->out.len;
    loop->node = outer->node;
    loop->frame = outer->frame;
    loop->depth0 = outer->depth0 + 1;
    loop->index0 = -1;
    loop->length = -1;
    TRY(iterator_init(r, &loop->it, args->items[0]));
    r->frame = loop->body_frame = frame_new(r, outer->frame, outer->node->scope->num_slots);
    r->depth += 4; /* its C frames */
    TRY(exec_loop(r, loop));
    r->depth -= 4;
    r->frame = frame;
    return capture_end(r, start, out);
}

static Status exec_node(Render *r, const Node *node)
{
    switch ((NodeKind)node->kind) {
    case N_DATA: strbuf_append(&r->out, node->value.text, node->value.len); return OK;
    case N_PRINT: return exec_print(r, node);
    case N_IF: return exec_if(r, node);
    case N_FOR: return exec_for(r, node);
    case N_SET: return exec_set(r, node);
    case N_SETBLOCK: return exec_set_block(r, node);
    case N_MACRO: *slot_of(r, node->var) = macro_value(r, node); return OK;
    case N_CALLBLOCK: return exec_call_block(r, node);
    case N_FILTERBLOCK: return exec_filter_block(r, node);
    case N_WITH: return exec_with(r, node);
    case N_GENERATION: return exec_generation(r, node);
    case N_SCOPE: scope_enter(r, node->scope); return exec_nodes(r, &node->body);
    case N_BREAK: r->flow = FLOW_BREAK; return OK;
    case N_CONTINUE: r->flow = FLOW_CONTINUE; return OK;
    default: CHECK(!"a statement"); return ERR_INTERNAL;
    }
}

Status exec_nodes(Render *r, const Nodes *nodes)
{
    if (r->depth >= RENDER_MAX_DEPTH) return render_fail(r, "evaluation is nested deeper than %d", RENDER_MAX_DEPTH);
    r->depth++;
    for (uint32_t i = 0; i < nodes->count && r->flow == FLOW_NEXT; i++) {
        r->line = nodes->items[i]->line;
        TRY(render_tick(r, 1));
        TRY(exec_node(r, nodes->items[i]));
        if (r->out.len > RENDER_MAX_TEXT_BYTES)
            return render_fail(r, "the output grows beyond %d MiB", RENDER_MAX_TEXT_BYTES >> 20);
    }
    r->depth--;
    return OK;
}
