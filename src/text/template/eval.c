/* Expressions. */
#include "text/template/exec.h"
#include "text/template/methods.h"
#include "text/template/open.h"
#include "text/template/text.h"

#include <string.h>

static Status eval_name(Render *r, const Node *node, Value *out)
{
    Frame *frame = r->frame;
    for (uint16_t hops = node->var.hops; hops; hops--) frame = frame->parent;
    *out = frame->slots[node->var.slot];
    if (value_is_missing(*out)) {
        Str name = r->tmpl->names.names[node->name];
        *out = value_undefined(UNDEF_NAME, V_NONE, name.data, name.len);
    }
    return OK;
}

static Status eval_list(Render *r, const Node *node, Value *out)
{
    Value *items = arena_array(&r->arena, Value, node->items.count);
    for (uint32_t i = 0; i < node->items.count; i++) TRY(eval(r, node->items.items[i], &items[i]));
    *out = value_list(r, node->kind == N_LIST ? V_LIST : V_TUPLE, items, node->items.count);
    return OK;
}

static Status eval_dict(Render *r, const Node *node, Value *out)
{
    Dict *dict = arena_new(&r->arena, Dict);
    for (uint32_t i = 0; i < node->items.count; i++) {
        Value key, value;
        TRY(eval(r, node->items.items[i], &key));
        TRY(eval(r, node->values.items[i], &value));
        TRY(dict_set(r, dict, key, value));
    }
    *out = (Value){ .type = V_DICT, .dict = dict };
    return OK;
}

static Status eval_item(Render *r, const Node *node, Value *out)
{
    Value object, key;
    TRY(eval(r, node->a, &object));
    if (node->b->kind != N_SLICE) {
        TRY(eval(r, node->b, &key));
        r->line = node->line;
        return value_getitem(r, object, key, out);
    }
    const Node *slice = node->b;
    Value       bounds[3] = { 0 };
    if (slice->a) TRY(eval(r, slice->a, &bounds[0]));
    if (slice->b) TRY(eval(r, slice->b, &bounds[1]));
    if (slice->c) TRY(eval(r, slice->c, &bounds[2]));
    r->line = node->line;
    return value_slice(r, object, bounds[0], bounds[1], bounds[2], out);
}

static Status eval_builtin(Render *r, const Node *node, Value object, Value *out)
{
    static const Args none = { 0 };
    bool              is_filter = node->kind == N_FILTER;
    Args              args = none;
    if (node->index == UINT32_MAX)
        return render_fail(r, "no %s named '%s'", is_filter ? "filter" : "test", r->tmpl->names.names[node->name].data);
    if (node->items.count) TRY(eval_args(r, node, (Value){ 0 }, &args));
    r->line = node->line;
    TRY(builtin_call(r, is_filter ? &template_filters[node->index] : &template_tests[node->index], object, &args, out));
    if (node->negated) {
        bool truth;
        TRY(value_truth(r, *out, &truth));
        *out = value_bool(!truth);
    }
    return OK;
}

static Status eval_concat(Render *r, const Node *node, Value *out)
{
    Value  *parts = arena_array(&r->arena, Value, node->items.count);
    size_t  total = 0, at = 0;
    uint8_t flags = VALUE_ASCII;
    bool    has_open = false;
    for (uint32_t i = 0; i < node->items.count; i++) {
        TRY(eval(r, node->items.items[i], &parts[i]));
        has_open |= parts[i].type == V_OPEN;
        if (parts[i].type == V_OPEN) continue;
        TRY(value_to_text(r, parts[i], &parts[i]));
        total += parts[i].len;
        flags &= parts[i].flags;
    }
    if (has_open) return open_join(r, parts, node->items.count, out);
    TRY(text_check(r, total));
    char *text = arena_alloc(&r->arena, total + 1);
    for (uint32_t i = 0; i < node->items.count; at += parts[i++].len)
        if (parts[i].len) memcpy(text + at, parts[i].text, parts[i].len);
    *out = value_text(text, total);
    out->flags = flags;
    return OK;
}

static Status compare(Render *r, TokenKind op, Value a, Value b, bool *out)
{
    static const char *const names[] = { "<", "<=", ">", ">=" };
    int                      order;
    if (op == T_EQ || op == T_NE) {
        TRY(value_equal(r, a, b, out));
        if (op == T_NE) *out = !*out;
        return OK;
    }
    if (op == T_IN || op == T_NOTIN) {
        TRY(value_contains(r, a, b, out));
        if (op == T_NOTIN) *out = !*out;
        return OK;
    }
    TRY(value_compare(r, a, b, names[op - T_LT], &order));
    *out = order != 2 && (op == T_LT ? order < 0 : op == T_LE ? order <= 0 : op == T_GT ? order > 0 : order >= 0);
    return OK;
}

static Status eval_compare(Render *r, const Node *node, Value *out)
{
    Value left, right;
    bool  truth = true;
    TRY(eval(r, node->a, &left));
    for (uint32_t i = 0; truth && i < node->items.count; i++) {
        const Node *operand = node->items.items[i];
        TRY(eval(r, operand->a, &right));
        r->line = node->line;
        TRY(compare(r, (TokenKind)operand->op, left, right, &truth));
        left = right;
    }
    *out = value_bool(truth);
    return OK;
}

static Status eval_condition(Render *r, const Node *node, Value *out)
{
    Value condition;
    bool  truth;
    TRY(eval(r, node->b, &condition));
    TRY(value_truth(r, condition, &truth));
    if (truth) return eval(r, node->a, out);
    if (node->c) return eval(r, node->c, out);
    *out = value_hint("the inline if-expression evaluated to false and no else section was defined.");
    return OK;
}

/* and, or: the operand that decides. */
static Status eval_logic(Render *r, const Node *node, Value *out)
{
    bool truth;
    TRY(eval(r, node->a, out));
    TRY(value_truth(r, *out, &truth));
    if (truth == (node->kind == N_OR)) return OK;
    return eval(r, node->b, out);
}

static Status eval_sign(Render *r, const Node *node, Value *out)
{
    Value v;
    TRY(eval(r, node->a, &v));
    r->line = node->line;
    if (v.type == V_UNDEFINED) return undefined_fail(r, v);
    if (!value_is_number(v)) return render_fail(r, "bad operand type for a sign: '%s'", value_type_name(v));
    TRY(check_size(r, v));
    if (node->kind == N_POS) {
        *out = v.type == V_BOOL ? value_int(v.boolean) : v;
        return OK;
    }
    if (v.type == V_FLOAT) {
        *out = value_float(-v.number);
        return OK;
    }
    return value_binary(r, T_SUB, value_int(0), value_int(value_as_int(v)), out);
}

static Status eval_binary(Render *r, const Node *node, Value *out)
{
    Value a, b;
    TRY(eval(r, node->a, &a));
    TRY(eval(r, node->b, &b));
    r->line = node->line;
    return value_binary(r, (TokenKind)node->op, a, b, out);
}

static Status eval_node(Render *r, const Node *node, Value *out)
{
    Value v;
    bool  truth;
    switch ((NodeKind)node->kind) {
    case N_CONST: *out = node->value; return OK;
    case N_NAME: return eval_name(r, node, out);
    case N_LIST:
    case N_TUPLE: return eval_list(r, node, out);
    case N_DICT: return eval_dict(r, node, out);
    case N_GETATTR:
        TRY(eval(r, node->a, &v));
        r->line = node->line;
        return value_getattr(r, v, node->name, out);
    case N_GETITEM: return eval_item(r, node, out);
    case N_CALL: return eval_call(r, node, (Value){ 0 }, out);
    case N_FILTER:
    case N_TEST:
        TRY(eval(r, node->a, &v));
        r->line = node->line;
        return eval_builtin(r, node, v, out);
    case N_CONDEXPR: return eval_condition(r, node, out);
    case N_BINARY: return eval_binary(r, node, out);
    case N_CONCAT: return eval_concat(r, node, out);
    case N_COMPARE: return eval_compare(r, node, out);
    case N_AND:
    case N_OR: return eval_logic(r, node, out);
    case N_NOT:
        TRY(eval(r, node->a, &v));
        TRY(value_truth(r, v, &truth));
        *out = value_bool(!truth);
        return OK;
    case N_NEG:
    case N_POS: return eval_sign(r, node, out);
    case N_SLICE: return render_fail(r, "a slice stands where none can");
    default: CHECK(!"an expression"); return ERR_INTERNAL;
    }
}

Status eval(Render *r, const Node *node, Value *out)
{
    if (r->depth >= RENDER_MAX_DEPTH) return render_fail(r, "evaluation is nested deeper than %d: endless recursion?", RENDER_MAX_DEPTH);
    r->depth++;
    TRY(render_tick(r, 1));
    TRY(eval_node(r, node, out));
    r->depth--;
    return OK;
}

/* A filter of a block: its innermost operand is the text. */
Status eval_filter_chain(Render *r, const Node *filter, Value text, Value *out)
{
    *out = text;
    if (!filter) return OK;
    if (r->depth >= RENDER_MAX_DEPTH) return render_fail(r, "evaluation is nested too deeply");
    r->depth++;
    TRY(eval_filter_chain(r, filter->a, text, &text));
    TRY(eval_builtin(r, filter, text, out));
    r->depth--;
    return OK;
}
