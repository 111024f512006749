/* Calls: arguments, built-in functions with their parameter lists, macros, loops. */
#include "text/template/open.h"
#include "text/template/render.h"

#include <string.h>

bool has_name(const char *names, Str name)
{
    while (*names) {
        size_t len = strcspn(names, " ");
        if (str_same((Str){names, len}, name)) return true;
        names += len + (names[len] == ' ');
    }
    return false;
}

const Builtin *builtin_find(const Builtin *table, Str name)
{
    while (table->name && !has_name(table->name, name)) table++;
    return table->name ? table : NULL;
}

const Builtin *method_of(const Builtin *first, Value object, Str name)
{
    ValueType type = object.type == V_OPEN ? V_STRING : (ValueType)object.type;
    for (const Builtin *row = first; row && row->name; row++)
        if ((row->types >> type & 1) && has_name(row->name, name)) return row;
    return NULL;
}

void builtin_check(Render *r, const Builtin *builtin, const char *kind, Str name)
{
    if (!builtin) render_fail(r, "no %s named '%.*s'", kind, shown(name.len), name.data);
    if (builtin->call == missing) render_fail(r, "the %s '%.*s' is not supported", kind, shown(name.len), name.data);
}

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

/* Reads the next name of a parameter list; false at its end. */
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
    Call        call = {self, argv, args, builtin->mode, builtin->name};
    const char *params = builtin->params, *what = builtin->name;
    Str         name;
    bool        required;
    uint32_t    i = 0, num_used = 0;
    render_tick(r, args->keywords.count >> 2); /* the cost of the searches for each parameter among the keywords */
    if (r->open && open_builtin(r, builtin, &call.self, args, &answer)) return answer;
    if (params[0] == '*') return builtin->call(r, &call);
    if (params[0] == '/' && args->keywords.count) render_fail(r, "%s() takes no keyword arguments", what);
    if (params[0] == '/') params++;
    for (; next_param(&params, &name, &required); i++) {
        Value named = dict_get_text(&args->keywords, name);
        if (i < args->count) argv[i] = args->items[i];
        if (!value_is_missing(named) && i < args->count) render_fail(r, "%s() got two values for '%.*s'", what, (int)name.len, name.data);
        if (!value_is_missing(named)) argv[i] = named;
        num_used += !value_is_missing(named);
        if (required && value_is_missing(argv[i])) render_fail(r, "%s() needs the argument '%.*s'", what, (int)name.len, name.data);
    }
    if (args->count > i) render_fail(r, "%s() takes at most %u arguments, %u were given", what, i, args->count);
    if (args->keywords.count > num_used) render_fail(r, "%s() got a keyword argument that it doesn't know", what);
    return builtin->call(r, &call);
}

static void add_keyword(Render *r, Dict *keywords, Str name, Value value)
{
    render_tick_dict(r, keywords, name.len);
    if (!value_is_missing(dict_get_text(keywords, name)))
        render_fail(r, "got two values for the keyword argument '%.*s'", shown(name.len), name.data);
    dict_set(r, keywords, value_of_str(name), value);
}

static void add_argument(Render *r, List *items, Dict *keywords, const Node *arg)
{
    Value value = eval(r, arg->kind == N_KEYWORD ? arg->a : arg), item;
    if (arg->kind != N_KEYWORD) {
        list_add(r, items, value);
    } else if (arg->op == T_ASSIGN) {
        add_keyword(r, keywords, r->tmpl->names.names[arg->name], value);
    } else if (arg->op == T_MUL) {
        for (Iterator it = iterator_of(r, value); iterator_next(r, &it, &item);) list_add(r, items, item);
    } else {
        if (value.type != V_DICT) render_fail(r, "the argument after ** must be a mapping, not %s", value_type_name(value));
        for (uint32_t i = 0; i < value.dict->count; i++) {
            DictEntry entry = value.dict->entries[i];
            if (entry.key.type != V_STRING) render_fail(r, "keywords must be strings");
            add_keyword(r, keywords, value_str(entry.key), entry.value);
        }
    }
}

Args eval_args(Render *r, const Node *node, Value caller)
{
    List items = {0};
    Dict keywords = {0};
    if (node->items.count) items.items = arena_array(&r->arena, Value, items.capacity = node->items.count);
    for (uint32_t i = 0; i < node->items.count; i++) add_argument(r, &items, &keywords, node->items.items[i]);
    if (!value_is_missing(caller)) add_keyword(r, &keywords, str_of("caller"), caller);
    return (Args){items.items, items.count, keywords};
}

/* Sets the variables caller, kwargs and varargs of a macro. */
static void bind_extras(Render *r, const Node *node, const Args *args)
{
    const uint32_t *specials = r->tmpl->specials, num_params = node->items.count;
    Value           caller = dict_get_text(&args->keywords, str_of("caller"));
    Dict           *rest = arena_new(&r->arena, Dict);
    if (node->uses[SPECIAL_CALLER])
        set_variable(r, specials[SPECIAL_CALLER], value_is_given(caller) ? caller : value_hint("No caller defined"));
    for (uint32_t i = 0; i < args->keywords.count; i++) {
        DictEntry entry = args->keywords.entries[i];
        bool      is_known = node->uses[SPECIAL_CALLER] && str_equal(value_str(entry.key), "caller");
        for (uint32_t k = args->count; k < num_params && !is_known; k++)
            is_known = str_same(value_str(entry.key), r->tmpl->names.names[node->items.items[k]->name]);
        if (is_known) continue;
        if (!node->uses[SPECIAL_KWARGS]) render_fail(r, "the macro takes no keyword argument '%.*s'", shown(entry.key.len), entry.key.text);
        dict_set(r, rest, entry.key, entry.value);
    }
    if (node->uses[SPECIAL_KWARGS]) set_variable(r, specials[SPECIAL_KWARGS], value_dict(rest));
    List more = {0};
    if (args->count > num_params) more = (List){.items = (Value *)args->items + num_params, .count = args->count - num_params};
    if (node->uses[SPECIAL_VARARGS])
        set_variable(r, specials[SPECIAL_VARARGS], value_list(r, V_TUPLE, more));
    else if (more.count)
        render_fail(r, "the macro takes not more than %u arguments", num_params);
}

static void bind_params(Render *r, const Node *node, const Args *args)
{
    uint32_t num_params = node->items.count, num_required = num_params - node->values.count;
    render_tick(r, ((int64_t)num_params * args->keywords.count) >> 3);
    for (uint32_t i = 0; i < num_params; i++) {
        uint32_t name = node->items.items[i]->name;
        set_variable(r, name, i < args->count ? args->items[i] : dict_get_text(&args->keywords, r->tmpl->names.names[name]));
    }
    bind_extras(r, node, args);
    for (uint32_t i = 0; i < num_params; i++) {
        uint32_t name = node->items.items[i]->name;
        Str      text = r->tmpl->names.names[name];
        if (!value_is_missing(get_variable(r, name))) continue;
        const char *hint = arena_printf(&r->arena, "parameter '%.*s' was not provided", shown(text.len), text.data);
        set_variable(r, name, i >= num_required ? eval(r, node->values.items[i - num_required]) : value_hint(hint));
    }
}

static Value call_macro(Render *r, const Macro *macro, const Args *args)
{
    Frame *caller = r->frame;
    size_t start = r->out.len;
    frame_enter(r, macro->frame, macro->node->scope);
    bind_params(r, macro->node, args);
    r->calls++;
    exec_nodes(r, &macro->node->body);
    r->calls--;
    r->frame = caller;
    return capture_end(r, start);
}

static Value call_method(Render *r, Value self, const Builtin *method, const Args *args)
{
    Value v = builtin_call(r, method, self, args);
    if (value_is_markup(self) && v.type == V_STRING) v.flags |= VALUE_MARKUP;
    return v;
}

static Value call_value(Render *r, Value callee, const Args *args)
{
    if (callee.type == V_UNDEFINED) undefined_fail(r, callee);
    if (callee.type == V_METHOD) return call_method(r, callee.method->self, callee.method->builtin, args);
    if (callee.type == V_FUNCTION) return builtin_call(r, callee.function, callee, args);
    if (callee.type == V_MACRO) return call_macro(r, callee.macro, args);
    if (callee.type == V_LOOP) return loop_call(r, callee.loop, args);
    render_fail(r, "'%s' object is not callable", value_type_name(callee));
}

Value eval_call(Render *r, const Node *node, Value caller)
{
    const Node    *callee = node->a;
    bool           is_attribute = callee->kind == N_GETATTR;
    Value          value = eval(r, is_attribute ? callee->a : callee);
    Str            name = r->tmpl->names.names[callee->name];
    const Builtin *method = is_attribute ? method_of(callee->builtin, value, name) : NULL;
    bool           is_method = method && method->call != refused && method->call != missing; /* a direct call, without a bound method */
    if (is_attribute) r->line = callee->line;
    if (is_attribute && !is_method) value = value_getattr(r, value, callee->builtin, name);
    Args args = eval_args(r, node, caller);
    r->line = node->line;
    return is_method ? call_method(r, value, method, &args) : call_value(r, value, &args);
}
