/* Calls: arguments, built-in functions by their parameter lists, macros, loops. */
#include "text/template/methods.h"
#include "text/template/open.h"

#include <string.h>

uint32_t builtin_find(const Builtin *table, uint32_t count, Str name)
{
    for (uint32_t i = 0; i < count; i++)
        if (str_equal(name, table[i].name)) return i;
    return UINT32_MAX;
}

/* The next of the names split by spaces; false at the end. */
static bool next_param(const char **params, Str *name, bool *required)
{
    const char *s = *params;
    while (*s == ' ') s++;
    if (!*s) return false;
    *required = *s == '!';
    if (*required) s++;
    size_t len = strcspn(s, " ");
    *name = (Str){ s, len };
    *params = s + len;
    return true;
}

static Status keyword_unknown(Render *r, const Builtin *builtin, const Args *args)
{
    for (uint32_t k = 0; k < args->num_keywords; k++) {
        const char *params = builtin->params;
        Str         name;
        bool        required, known = false;
        while (next_param(&params, &name, &required)) known |= str_same(name, args->keywords[k].name);
        if (!known)
            return render_fail(r, "%s() got an unexpected keyword argument '%.*s'", builtin->name,
                               (int)(args->keywords[k].name.len & 0xFF), args->keywords[k].name.data);
    }
    return OK;
}

Status builtin_call(Render *r, const Builtin *builtin, Value self, const Args *args, Value *out)
{
    Value       argv[MAX_PARAMS] = { 0 };
    const char *params = builtin->params;
    Str         name;
    bool        required, done = false;
    if (r->open) TRY(open_builtin(r, builtin, &self, args, out, &done));
    if (done) return OK;
    if (params[0] == '*') return builtin->call(r, self, NULL, args, out);
    if (params[0] == '/' && args->num_keywords) return render_fail(r, "%s() takes no keyword arguments", builtin->name);
    if (params[0] == '/') params++;
    uint32_t i = 0;
    for (; next_param(&params, &name, &required); i++) {
        if (i < args->count) argv[i] = args->items[i];
        for (uint32_t k = 0; k < args->num_keywords; k++) {
            if (!str_same(name, args->keywords[k].name)) continue;
            if (!value_is_missing(argv[i]))
                return render_fail(r, "%s() got two values for '%.*s'", builtin->name, (int)name.len, name.data);
            argv[i] = args->keywords[k].value;
        }
        if (required && value_is_missing(argv[i]))
            return render_fail(r, "%s() needs the argument '%.*s'", builtin->name, (int)name.len, name.data);
    }
    if (args->count > i)
        return render_fail(r, "%s() takes at most %u arguments, %u were given", builtin->name, i, args->count);
    if (args->num_keywords) TRY(keyword_unknown(r, builtin, args));
    return builtin->call(r, self, argv, args, out);
}

/* ---- arguments ---- */

typedef struct Collected {
    Value   *items;
    Keyword *keywords;
    uint32_t count, num_keywords;
} Collected;

static Status add_keyword(Render *r, Collected *c, Str name, Value value)
{
    for (uint32_t i = 0; i < c->num_keywords; i++)
        if (str_same(c->keywords[i].name, name))
            return render_fail(r, "got two values for the keyword argument '%.*s'", (int)(name.len & 0xFF), name.data);
    c->keywords[c->num_keywords++] = (Keyword){ name, value };
    return OK;
}

static Status spread(Render *r, const Node *keyword, Collected *c)
{
    Value value;
    TRY(eval(r, keyword->a, &value));
    if (keyword->op == T_ASSIGN) return add_keyword(r, c, r->tmpl->names.names[keyword->name], value);
    if (keyword->op == T_MUL) {
        List   list;
        TRY(value_to_list(r, value, &list));
        Value *items = arena_array(&r->arena, Value, (size_t)c->count + list.count + 1);
        if (c->count) memcpy(items, c->items, c->count * sizeof *items);
        if (list.count) memcpy(items + c->count, list.items, list.count * sizeof *items);
        c->items = items;
        c->count += list.count;
        return OK;
    }
    if (value.type != V_DICT) return render_fail(r, "the argument after ** must be a mapping, not %s", value_type_name(value));
    Keyword *keywords = arena_array(&r->arena, Keyword, (size_t)c->num_keywords + value.dict->count + 1);
    if (c->num_keywords) memcpy(keywords, c->keywords, c->num_keywords * sizeof *keywords);
    c->keywords = keywords;
    TRY(render_tick(r, (int64_t)value.dict->count * value.dict->count >> 4));
    for (uint32_t i = 0; i < value.dict->count; i++) {
        if (value.dict->entries[i].key.type != V_STRING) return render_fail(r, "keywords must be strings");
        TRY(add_keyword(r, c, value_str(value.dict->entries[i].key), value.dict->entries[i].value));
    }
    return OK;
}

Status eval_args(Render *r, const Node *node, Value caller, Args *out)
{
    Collected c = { 0 };
    uint32_t  num_keywords = 0;
    for (uint32_t i = 0; node->needs_dict_args && i < node->items.count; i++)
        num_keywords += node->items.items[i]->kind == N_KEYWORD;
    if (!value_is_missing(caller)) num_keywords++;
    if (node->items.count) c.items = arena_array(&r->arena, Value, node->items.count);
    if (num_keywords) c.keywords = arena_array(&r->arena, Keyword, num_keywords);
    for (uint32_t i = 0; i < node->items.count; i++) {
        const Node *arg = node->items.items[i];
        if (arg->kind != N_KEYWORD) {
            TRY(eval(r, arg, &c.items[c.count++]));
            continue;
        }
        TRY(spread(r, arg, &c));
    }
    if (!value_is_missing(caller)) {
        Keyword *keywords = arena_array(&r->arena, Keyword, (size_t)c.num_keywords + 1);
        if (c.num_keywords) memcpy(keywords, c.keywords, c.num_keywords * sizeof *keywords);
        c.keywords = keywords;
        TRY(add_keyword(r, &c, str_of("caller"), caller));
    }
    *out = (Args){ c.items, c.count, c.keywords, c.num_keywords };
    return OK;
}

/* ---- macros ---- */

static Value *slot_of(Frame *frame, VarRef var)
{
    for (uint16_t hops = var.hops; hops; hops--) frame = frame->parent;
    return &frame->slots[var.slot];
}

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
    return (Value){ 0 };
}

static Status bind_extras(Render *r, MacroCall *call)
{
    const Node *node = call->node;
    uint32_t    num_params = node->items.count, left = 0;
    if (node->uses_caller) {
        Value caller = take_keyword(call, str_of("caller"));
        if (value_is_missing(caller) || caller.type == V_NONE) caller = value_hint("No caller defined");
        *slot_of(call->frame, node->caller) = caller;
    }
    Dict *rest = arena_new(&r->arena, Dict);
    for (uint32_t i = 0; i < call->args->num_keywords; i++) {
        const Keyword *keyword = &call->args->keywords[i];
        if (call->used[i]) continue;
        left++;
        if (!node->uses_kwargs)
            return render_fail(r, "the macro takes no keyword argument '%.*s'", (int)(keyword->name.len & 0xFF), keyword->name.data);
        TRY(dict_set(r, rest, value_text(keyword->name.data, keyword->name.len), keyword->value));
    }
    if (node->uses_kwargs) *slot_of(call->frame, node->kwargs) = (Value){ .type = V_DICT, .dict = rest };
    if (node->uses_varargs) {
        uint32_t count = call->args->count > num_params ? call->args->count - num_params : 0;
        Value   *rest_items = count ? (Value *)call->args->items + num_params : NULL;
        *slot_of(call->frame, node->varargs) = value_list(r, V_TUPLE, rest_items, count);
    } else if (call->args->count > num_params) {
        return render_fail(r, "the macro takes not more than %u arguments", num_params);
    }
    return OK;
}

static Status bind_params(Render *r, MacroCall *call)
{
    const Node *node = call->node;
    uint32_t    num_params = node->items.count, num_required = num_params - node->values.count;
    for (uint32_t i = 0; i < num_params; i++) {
        Value *slot = slot_of(call->frame, node->items.items[i]->var);
        *slot = i < call->args->count ? call->args->items[i] : take_keyword(call, r->tmpl->names.names[node->items.items[i]->name]);
    }
    TRY(bind_extras(r, call));
    scope_enter(r, node->scope);
    for (uint32_t i = 0; i < num_params; i++) {
        Value *slot = slot_of(call->frame, node->items.items[i]->var);
        if (!value_is_missing(*slot)) continue;
        if (i >= num_required) {
            Value value;
            TRY(eval(r, node->values.items[i - num_required], &value));
            *slot = value;
        } else {
            Str name = r->tmpl->names.names[node->items.items[i]->name];
            const char *text = arena_printf(&r->arena, "parameter '%.*s' was not provided", (int)(name.len & 0xFF), name.data);
            *slot = value_undefined(UNDEF_HINT, V_NONE, text, strlen(text));
        }
    }
    return OK;
}

static Status call_macro(Render *r, const Macro *macro, const Args *args, Value *out)
{
    MacroCall call = { .node = macro->node, .args = args };
    Frame    *caller = r->frame;
    size_t    start = r->out.len;
    call.frame = arena_alloc(&r->arena, sizeof(Frame) + macro->node->scope->num_slots * sizeof(Value));
    call.frame->parent = macro->frame;
    call.used = arena_array(&r->arena, bool, args->num_keywords + 1);
    r->frame = call.frame;
    TRY(bind_params(r, &call));
    TRY(exec_nodes(r, &macro->node->body));
    r->frame = caller;
    return capture_end(r, start, out);
}

/* ---- calls ---- */

static Status call_method(Render *r, Value self, uint32_t id, const Args *args, Value *out)
{
    TRY(builtin_call(r, &method_table_of(self)->methods[id], self, args, out));
    if (self.type == V_STRING && (self.flags & VALUE_MARKUP) && out->type == V_STRING) out->flags |= VALUE_MARKUP;
    return OK;
}

static Status call_joiner(Render *r, Cycler *joiner, Value *out)
{
    *out = joiner->pos ? joiner->text : value_text("", 0);
    joiner->pos = 1;
    (void)r;
    return OK;
}

static Status call_value(Render *r, Value callee, const Args *args, Value *out)
{
    switch ((ValueType)callee.type) {
    case V_UNDEFINED: return undefined_fail(r, callee);
    case V_METHOD: return call_method(r, callee.method->self, callee.method->id, args, out);
    case V_FUNCTION: return builtin_call(r, &template_functions[callee.len], callee, args, out);
    case V_MACRO: return call_macro(r, callee.macro, args, out);
    case V_LOOP: return loop_call(r, callee.loop, args, out);
    case V_JOINER: return call_joiner(r, callee.cycler, out);
    default: return render_fail(r, "'%s' object is not callable", value_type_name(callee));
    }
}

Status eval_call(Render *r, const Node *node, Value caller, Value *out)
{
    const Node *callee = node->a;
    Args        args;
    Value       value;
    if (callee->kind == N_GETATTR && callee->name < METHOD_COUNT) { /* without an object for the bound method */
        TRY(eval(r, callee->a, &value));
        const MethodTable *table = method_table_of(value);
        if (table && table->methods[callee->name].call) {
            TRY(eval_args(r, node, caller, &args));
            r->line = node->line;
            return call_method(r, value, callee->name, &args, out);
        }
        TRY(value_getattr(r, value, callee->name, &value));
    } else {
        TRY(eval(r, callee, &value));
    }
    TRY(eval_args(r, node, caller, &args));
    r->line = node->line;
    return call_value(r, value, &args, out);
}
