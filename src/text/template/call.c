/* Calls: arguments, built-in functions by their parameter lists, macros, loops. */
#include "text/template/open.h"
#include "text/template/render.h"

#include <string.h>

const Builtin *builtin_find(const Builtin *table, Str name)
{
    while (table->name && !str_equal(name, table->name)) table++;
    return table->name ? table : NULL;
}

const Builtin *method_of(const Builtin *first, Value object)
{
    ValueType type = object.type == V_OPEN ? V_STRING : (ValueType)object.type;
    for (const Builtin *row = first; row && row->name && (row == first || strcmp(row->name, first->name) == 0); row++)
        if (row->types >> type & 1) return row;
    return NULL;
}

/* ---- parameters ---- */

int64_t arg_int(Render *r, Value v, const char *what, int64_t otherwise)
{
    if (value_is_missing(v)) return otherwise;
    if (!value_is(v, TYPES_INTEGRAL)) render_fail(r, "%s must be an integer, not %s", what, value_type_name(v));
    return value_as_int(v);
}

bool arg_bool(Render *r, Value v, bool otherwise)
{
    return value_is_missing(v) ? otherwise : value_truth(r, v);
}

Value arg_text(Render *r, Value v, const char *what)
{
    if (v.type != V_STRING) render_fail(r, "%s must be str, not %s", what, value_type_name(v));
    return v;
}

/* The next of the names split by spaces; false at the end. */
static bool next_param(const char **params, Str *name, bool *required)
{
    const char *s = *params + strspn(*params, " ");
    if (!*s) return false;
    *required = *s == '!';
    *name = (Str){s + *required, strcspn(s + *required, " ")};
    *params = name->data + name->len;
    return true;
}

Value builtin_call(Render *r, const Builtin *builtin, Value self, const Args *args)
{
    Value       argv[MAX_PARAMS] = {0}, answer;
    Call        call = {self, argv, args, builtin->mode};
    const char *params = builtin->params, *what = builtin->name;
    Str         name;
    bool        required;
    uint32_t    i = 0, num_used = 0;
    if (r->open && open_builtin(r, builtin, &call.self, args, &answer)) return answer;
    if (params[0] == '*') return builtin->call(r, &call);
    if (params[0] == '/' && args->num_keywords) render_fail(r, "%s() takes no keyword arguments", what);
    if (params[0] == '/') params++;
    for (; next_param(&params, &name, &required); i++) {
        if (i < args->count) argv[i] = args->items[i];
        for (uint32_t k = 0; k < args->num_keywords; k++) {
            if (!str_same(name, args->keywords[k].name)) continue;
            if (!value_is_missing(argv[i])) render_fail(r, "%s() got two values for '%.*s'", what, (int)name.len, name.data);
            argv[i] = args->keywords[k].value;
            num_used++;
        }
        if (required && value_is_missing(argv[i])) render_fail(r, "%s() needs the argument '%.*s'", what, (int)name.len, name.data);
    }
    if (args->count > i) render_fail(r, "%s() takes at most %u arguments, %u were given", what, i, args->count);
    if (args->num_keywords > num_used) render_fail(r, "%s() got a keyword argument that it doesn't know", what);
    return builtin->call(r, &call);
}

/* ---- arguments ---- */

typedef struct Collected {
    List     items;
    Keyword *keywords;
    uint32_t num_keywords, capacity;
} Collected;

static void add_keyword(Render *r, Collected *c, Str name, Value value)
{
    for (uint32_t i = 0; i < c->num_keywords; i++)
        if (str_same(c->keywords[i].name, name))
            render_fail(r, "got two values for the keyword argument '%.*s'", shown(name.len), name.data);
    c->keywords = array_grown(&r->arena, c->keywords, c->num_keywords, &c->capacity, sizeof *c->keywords);
    c->keywords[c->num_keywords++] = (Keyword){name, value};
}

static void add_argument(Render *r, Collected *c, const Node *arg)
{
    if (arg->kind != N_KEYWORD) {
        list_add(r, &c->items, eval(r, arg));
        return;
    }
    Value value = eval(r, arg->a);
    if (arg->op == T_ASSIGN) {
        add_keyword(r, c, r->tmpl->names.names[arg->name], value);
    } else if (arg->op == T_MUL) {
        List list = value_to_list(r, value);
        for (uint32_t i = 0; i < list.count; i++) list_add(r, &c->items, list.items[i]);
    } else {
        if (value.type != V_DICT) render_fail(r, "the argument after ** must be a mapping, not %s", value_type_name(value));
        render_tick(r, (int64_t)value.dict->count * value.dict->count >> 4);
        for (uint32_t i = 0; i < value.dict->count; i++) {
            DictEntry entry = value.dict->entries[i];
            if (entry.key.type != V_STRING) render_fail(r, "keywords must be strings");
            add_keyword(r, c, value_str(entry.key), entry.value);
        }
    }
}

Args eval_args(Render *r, const Node *node, Value caller)
{
    Collected c = {0};
    if (node->items.count) c.items.items = arena_array(&r->arena, Value, c.items.capacity = node->items.count);
    for (uint32_t i = 0; i < node->items.count; i++) add_argument(r, &c, node->items.items[i]);
    if (!value_is_missing(caller)) add_keyword(r, &c, str_of("caller"), caller);
    return (Args){c.items.items, c.items.count, c.keywords, c.num_keywords};
}

/* ---- macros ---- */

typedef struct MacroCall {
    const Node *node;
    const Args *args;
    Frame      *frame;
    bool       *used; /* of the keywords */
} MacroCall;

static Value take_keyword(MacroCall *call, Str name)
{
    for (uint32_t i = 0; i < call->args->num_keywords; i++) {
        if (call->used[i] || !str_same(call->args->keywords[i].name, name)) continue;
        call->used[i] = true;
        return call->args->keywords[i].value;
    }
    return (Value){0};
}

/* caller, kwargs and varargs. */
static void bind_extras(Render *r, MacroCall *call)
{
    const Node *node = call->node;
    const Args *args = call->args;
    uint32_t    num_params = node->items.count;
    if (node->uses_caller) {
        Value caller = take_keyword(call, str_of("caller"));
        *slot_of(call->frame, node->caller) = value_is_given(caller) ? caller : value_hint("No caller defined");
    }
    Dict *rest = arena_new(&r->arena, Dict);
    for (uint32_t i = 0; i < args->num_keywords; i++) {
        Str name = args->keywords[i].name;
        if (call->used[i]) continue;
        if (!node->uses_kwargs) render_fail(r, "the macro takes no keyword argument '%.*s'", shown(name.len), name.data);
        dict_set(r, rest, value_of_str(name), args->keywords[i].value);
    }
    if (node->uses_kwargs) *slot_of(call->frame, node->kwargs) = value_dict(rest);
    List more = {0};
    if (args->count > num_params) more = (List){.items = (Value *)args->items + num_params, .count = args->count - num_params};
    if (node->uses_varargs)
        *slot_of(call->frame, node->varargs) = value_list(r, V_TUPLE, more);
    else if (more.count)
        render_fail(r, "the macro takes not more than %u arguments", num_params);
}

static void bind_params(Render *r, MacroCall *call)
{
    const Node *node = call->node;
    uint32_t    num_params = node->items.count, num_required = num_params - node->values.count;
    for (uint32_t i = 0; i < num_params; i++) {
        const Node *param = node->items.items[i];
        *slot_of(call->frame, param->var) =
            i < call->args->count ? call->args->items[i] : take_keyword(call, r->tmpl->names.names[param->name]);
    }
    bind_extras(r, call);
    scope_enter(r, node->scope);
    for (uint32_t i = 0; i < num_params; i++) {
        Str    name = r->tmpl->names.names[node->items.items[i]->name];
        Value *slot = slot_of(call->frame, node->items.items[i]->var);
        if (!value_is_missing(*slot)) continue;
        *slot = i >= num_required ? eval(r, node->values.items[i - num_required])
                                  : value_hint(arena_printf(&r->arena, "parameter '%.*s' was not provided", shown(name.len), name.data));
    }
}

static Value call_macro(Render *r, const Macro *macro, const Args *args)
{
    MacroCall call = {.node = macro->node, .args = args, .frame = frame_new(r, macro->frame, macro->node->scope)};
    Frame    *caller = r->frame;
    size_t    start = r->out.len;
    call.used = arena_array(&r->arena, bool, args->num_keywords + 1);
    r->frame = call.frame;
    bind_params(r, &call);
    exec_nodes(r, &macro->node->body);
    r->frame = caller;
    return capture_end(r, start);
}

/* ---- calls ---- */

static Value call_method(Render *r, Value self, const Builtin *method, const Args *args)
{
    Value v = builtin_call(r, method, self, args);
    if (value_is_markup(self) && v.type == V_STRING) v.flags |= VALUE_MARKUP;
    return v;
}

static Value call_value(Render *r, Value callee, const Args *args)
{
    switch ((ValueType)callee.type) {
    case V_UNDEFINED:
        undefined_fail(r, callee);
    case V_METHOD:
        return call_method(r, callee.method->self, callee.method->builtin, args);
    case V_FUNCTION:
        return builtin_call(r, callee.function, callee, args);
    case V_MACRO:
        return call_macro(r, callee.macro, args);
    case V_LOOP:
        return loop_call(r, callee.loop, args);
    case V_JOINER:
        return callee.cycler->pos++ ? callee.cycler->text : value_text("", 0);
    default:
        render_fail(r, "'%s' object is not callable", value_type_name(callee));
    }
}

Value eval_call(Render *r, const Node *node, Value caller)
{
    const Node    *callee = node->a;
    bool           is_attribute = callee->kind == N_GETATTR;
    Value          value = eval(r, is_attribute ? callee->a : callee);
    const Builtin *method = is_attribute ? method_of(callee->builtin, value) : NULL;
    bool           is_method = method && method->call; /* without an object for the bound method */
    if (is_attribute) r->line = callee->line;
    if (is_attribute && !is_method) value = value_getattr(r, value, callee->builtin, r->tmpl->names.names[callee->name]);
    Args args = eval_args(r, node, caller);
    r->line = node->line;
    return is_method ? call_method(r, value, method, &args) : call_value(r, value, &args);
}
