/* Evaluates expressions. */
#include "text/template/open.h"
#include "text/template/render.h"

#include <string.h>

static Value eval_name(Render *r, const Node *node)
{
    Value v = get_variable(r, node->name);
    return value_is_missing(v) ? value_undefined(UNDEF_NAME, v, r->tmpl->names.names[node->name]) : v;
}

static Value eval_list(Render *r, const Node *node)
{
    List list = {.items = arena_array(&r->arena, Value, node->items.count), .count = node->items.count};
    for (uint32_t i = 0; i < list.count; i++) list.items[i] = eval(r, node->items.items[i]);
    return value_list(r, node->kind == N_LIST ? V_LIST : V_TUPLE, list);
}

static Value eval_dict(Render *r, const Node *node)
{
    Dict *dict = arena_new(&r->arena, Dict);
    for (uint32_t i = 0; i < node->items.count; i++) {
        Value key = eval(r, node->items.items[i]);
        dict_set(r, dict, key, eval(r, node->values.items[i]));
    }
    return value_dict(dict);
}

static Value eval_item(Render *r, const Node *node)
{
    const Node *index = node->b;
    Value       object = eval(r, node->a), parts[3] = {0};
    if (index->kind != N_SLICE) {
        Value key = eval(r, index);
        r->line = node->line;
        return value_getitem(r, object, key);
    }
    if (index->a) parts[0] = eval(r, index->a);
    if (index->b) parts[1] = eval(r, index->b);
    if (index->c) parts[2] = eval(r, index->c);
    r->line = node->line;
    return value_slice(r, object, parts);
}

/* Applies a filter or test. */
static Value eval_builtin(Render *r, const Node *node, Value object)
{
    r->line = node->line;
    builtin_check(r, node->builtin, node->kind == N_FILTER ? "filter" : "test", r->tmpl->names.names[node->name]);
    Args args = eval_args(r, node, (Value){0});
    r->line = node->line;
    Value v = builtin_call(r, node->builtin, object, &args);
    return node->negated ? value_bool(!value_truth(r, v)) : v;
}

static Value eval_concat(Render *r, const Node *node)
{
    Value *parts = arena_array(&r->arena, Value, node->items.count);
    bool   has_open = false;
    for (uint32_t i = 0; i < node->items.count; i++) {
        parts[i] = eval(r, node->items.items[i]);
        has_open |= parts[i].type == V_OPEN;
        if (parts[i].type != V_OPEN) parts[i] = value_to_text(r, parts[i]);
    }
    if (has_open) return open_join(r, parts, node->items.count);
    size_t begin = r->out.len;
    for (uint32_t i = 0; i < node->items.count; i++) {
        print_str(r, parts[i]);
        text_fits(r);
    }
    return text_take(r, begin);
}

bool value_is_ordered(Render *r, TokenKind op, Value a, Value b)
{
    if (op == T_EQ || op == T_NE) return value_equal(r, a, b) == (op == T_EQ);
    if (op == T_IN || op == T_NOTIN) return value_contains(r, a, b) == (op == T_IN);
    int order = value_compare(r, a, b, token_texts[op]);
    return order != 2 && (op == T_LT ? order < 0 : op == T_LE ? order <= 0 : op == T_GT ? order > 0 : order >= 0);
}

static Value eval_compare(Render *r, const Node *node)
{
    Value left = eval(r, node->a);
    bool  truth = true;
    for (uint32_t i = 0; truth && i < node->items.count; i++) {
        const Node *operand = node->items.items[i];
        Value       right = eval(r, operand->a);
        r->line = node->line;
        truth = value_is_ordered(r, (TokenKind)operand->op, left, right);
        left = right;
    }
    return value_bool(truth);
}

static Value eval_condition(Render *r, const Node *node)
{
    if (value_truth(r, eval(r, node->b))) return eval(r, node->a);
    if (node->c) return eval(r, node->c);
    return value_hint("the inline if-expression evaluated to false and no else section was defined.");
}

/* `and` and `or`: returns the operand that decides. */
static Value eval_logic(Render *r, const Node *node)
{
    Value v = eval(r, node->a);
    return value_truth(r, v) == (node->kind == N_OR) ? v : eval(r, node->b);
}

static Value eval_sign(Render *r, const Node *node)
{
    Value v = eval(r, node->a);
    r->line = node->line;
    if (v.type == V_UNDEFINED) undefined_fail(r, v);
    if (!value_is(v, TYPES_NUMBER)) render_fail(r, "bad operand type for a sign: '%s'", value_type_name(v));
    check_size(r, v);
    if (v.type == V_FLOAT) return value_float(node->kind == N_POS ? v.number : -v.number);
    return value_binary(r, node->kind == N_POS ? T_ADD : T_SUB, value_int(0), value_int(value_as_int(v)));
}

static Value eval_binary(Render *r, const Node *node)
{
    Value a = eval(r, node->a), b = eval(r, node->b);
    r->line = node->line;
    return value_binary(r, (TokenKind)node->op, a, b);
}

static Value eval_getattr(Render *r, const Node *node)
{
    Value object = eval(r, node->a);
    r->line = node->line;
    return value_getattr(r, object, node->builtin, r->tmpl->names.names[node->name]);
}

static Value eval_const(Render *r, const Node *node)
{
    (void)r;
    return node->value;
}

static Value eval_plain_call(Render *r, const Node *node)
{
    return eval_call(r, node, (Value){0});
}

static Value eval_applied(Render *r, const Node *node)
{
    return eval_builtin(r, node, eval(r, node->a));
}

static Value eval_not(Render *r, const Node *node)
{
    return value_bool(!value_truth(r, eval(r, node->a)));
}

static Value (*const evaluators[NUM_NODES])(Render *r, const Node *node) = {
#define EXPRESSION(kind, function) [kind] = function,
#include "text/template/nodes.def"
};

Value eval(Render *r, const Node *node)
{
    render_deeper(r);
    render_tick(r, 1);
    Value v = evaluators[node->kind](r, node);
    r->depth--;
    return v;
}

/* Applies a chain of filters to `text`; the innermost filter has no operand of its own. */
Value eval_filter_chain(Render *r, const Node *filter, Value text)
{
    if (!filter) return text;
    render_deeper(r);
    text = eval_builtin(r, filter, eval_filter_chain(r, filter->a, text));
    r->depth--;
    return text;
}
