/* Truth, equality, order and dictionaries, with Python's rules: numbers compare across bool, int and float; lists and
 * tuples element by element; other types are equal only when they are the same object. */
#include "text/template/open.h"
#include "text/template/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

Status render_fail(const Render *r, const char *fmt, ...)
{
    char    message[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    FAIL(ERR_INVALID, "%s:%d: %s", r->tmpl->name, r->line, message);
}

Status render_tick(Render *r, int64_t steps)
{
    r->steps += steps;
    if (r->steps > r->max_steps)
        return render_fail(r, "the template takes more than %lld steps", (long long)r->max_steps);
    if (r->arena.used_bytes > RENDER_MAX_ARENA_BYTES)
        return render_fail(r, "the template needs more than %d MiB of memory", RENDER_MAX_ARENA_BYTES >> 20);
    return OK;
}

const char *value_type_name(Value v)
{
    static const char *const names[] = {
        "missing", "Undefined", "NoneType", "bool", "int", "float", "str", "list", "tuple", "dict", "range", "generator",
        "dict_items", "Namespace", "LoopContext", "Macro", "function", "method", "Cycler", "Joiner", "str",
    };
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };
    if (v.type == V_VIEW) return views[v.view->kind];
    if (v.type == V_ITER) return v.iter->name;
    if (v.type == V_STRING && (v.flags & VALUE_MARKUP)) return "Markup";
    return names[v.type];
}

/* As Jinja names the object of a missing attribute. */
static const char *object_name(ValueType type)
{
    Value v = { .type = (uint8_t)type };
    switch (type) {
    case V_NONE: return "None";
    case V_VIEW: return "dict view object";
    case V_ITER: return "generator object";
    case V_NAMESPACE: return "jinja2.utils.Namespace object";
    case V_LOOP: return "jinja2.runtime.LoopContext object";
    case V_MACRO: return "jinja2.runtime.Macro object";
    case V_CYCLER: return "jinja2.utils.Cycler object";
    case V_JOINER: return "jinja2.utils.Joiner object";
    case V_STRING: return "str object";
    case V_LIST: return "list object";
    case V_DICT: return "dict object";
    case V_TUPLE: return "tuple object";
    case V_INT: return "int object";
    case V_FLOAT: return "float object";
    case V_BOOL: return "bool object";
    default: return value_type_name(v);
    }
}

Status undefined_fail(const Render *r, Value undefined)
{
    UndefinedKind kind = undefined.aux & 0xFF;
    const char   *object = object_name((ValueType)(undefined.aux >> 8));
    int           len = undefined.len < 500 ? (int)undefined.len : 500;
    switch (kind) {
    case UNDEF_NAME: return render_fail(r, "'%.*s' is undefined", len, undefined.text);
    case UNDEF_ATTRIBUTE: return render_fail(r, "'%s' has no attribute '%.*s'", object, len, undefined.text);
    case UNDEF_ELEMENT: return render_fail(r, "%s has no element %.*s", object, len, undefined.text);
    case UNDEF_UNSAFE: return render_fail(r, "access to attribute '%.*s' of '%s' is unsafe", len, undefined.text, object);
    default: return render_fail(r, "%.*s", len, undefined.text);
    }
}

Status check_size(const Render *r, Value v)
{
    if (v.type != V_FLOAT || !(v.flags & VALUE_TOO_BIG)) return OK;
    return render_fail(r, "an integer of the data does not fit 64 bits, larger ones are not supported");
}

Value value_list(Render *r, ValueType type, Value *items, uint32_t count)
{
    List *list = arena_new(&r->arena, List);
    *list = (List){ items, count };
    return (Value){ .type = (uint8_t)type, .list = list };
}

Value value_pair(Render *r, Value a, Value b)
{
    Value *items = arena_array(&r->arena, Value, 2);
    items[0] = a;
    items[1] = b;
    return value_list(r, V_TUPLE, items, 2);
}

Value value_copy_text(Render *r, const char *text, size_t len)
{
    return value_text(arena_strndup(&r->arena, text, len), len);
}

Status text_check(Render *r, size_t bytes)
{
    if (bytes > RENDER_MAX_TEXT_BYTES) return render_fail(r, "a text grows beyond %d MiB", RENDER_MAX_TEXT_BYTES >> 20);
    return render_tick(r, (int64_t)(bytes >> 10));
}

Status text_finish(Render *r, StrBuf *text, Value *out)
{
    Status status = text_check(r, text->len);
    if (status == OK) *out = value_copy_text(r, strbuf_cstr(text), text->len);
    strbuf_deinit(text);
    return status;
}

Status value_truth(Render *r, Value v, bool *out)
{
    int64_t length = 0;
    switch ((ValueType)v.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: *out = false; return OK;
    case V_BOOL: *out = v.boolean; return OK;
    case V_INT: *out = v.integer != 0; return OK;
    case V_FLOAT: *out = v.number != 0; return OK;
    case V_STRING: *out = v.len != 0; return OK;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_RANGE:
    case V_VIEW:
    case V_LOOP:
        TRY(value_length(r, v, &length));
        *out = length != 0;
        return OK;
    case V_OPEN: return open_truth(r, v, out);
    default: *out = true; return OK;
    }
}

Status value_length(Render *r, Value v, int64_t *out)
{
    switch ((ValueType)v.type) {
    case V_UNDEFINED: *out = 0; return OK;
    case V_STRING:
        TRY(render_tick(r, v.len >> 10));
        *out = v.flags & VALUE_ASCII ? v.len : (int64_t)utf8_count(v.text, v.len);
        return OK;
    case V_LIST:
    case V_TUPLE: *out = v.list->count; return OK;
    case V_DICT: *out = v.dict->count; return OK;
    case V_RANGE: *out = v.range->count; return OK;
    case V_VIEW: *out = v.view->dict->count; return OK;
    case V_LOOP: return loop_length(r, v.loop, out);
    default: return render_fail(r, "object of type '%s' has no length", value_type_name(v));
    }
}

static Status enter(Render *r)
{
    if (r->depth >= RENDER_MAX_DEPTH) return render_fail(r, "values are nested too deeply");
    r->depth++;
    return render_tick(r, 1);
}

static Status equal_lists(Render *r, Value a, Value b, bool *out)
{
    *out = a.list->count == b.list->count;
    for (uint32_t i = 0; *out && a.list != b.list && i < a.list->count; i++)
        TRY(value_equal(r, a.list->items[i], b.list->items[i], out));
    return OK;
}

static Status equal_dicts(Render *r, const Dict *a, const Dict *b, bool *out)
{
    *out = a->count == b->count;
    for (uint32_t i = 0; *out && a != b && i < a->count; i++) {
        Value other;
        TRY(dict_get(r, b, a->entries[i].key, &other));
        *out = !value_is_missing(other);
        if (*out) TRY(value_equal(r, a->entries[i].value, other, out));
    }
    return OK;
}

/* keys() and items() of a dict are sets, values() is only equal to itself. */
static Status equal_views(Render *r, Value a, Value b, bool *out)
{
    const Dict *dict = a.view->dict;
    bool        is_set = a.view->kind != VIEW_VALUES;
    *out = a.view->kind == b.view->kind && dict->count == b.view->dict->count && (is_set || a.view == b.view);
    for (uint32_t i = 0; *out && is_set && i < dict->count; i++) {
        Value other;
        TRY(dict_get(r, b.view->dict, dict->entries[i].key, &other));
        *out = !value_is_missing(other);
        if (*out && a.view->kind == VIEW_ITEMS) TRY(value_equal(r, dict->entries[i].value, other, out));
    }
    return OK;
}

/* int against float without rounding the int: -1, 0, 1. */
static int compare_int_float(int64_t a, double b)
{
    if (b >= 9223372036854775808.0) return -1;
    if (b < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)b;
    if (a != whole) return a < whole ? -1 : 1;
    double rest = b - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int compare_numbers(Value a, Value b)
{
    if (value_is_integral(a) && value_is_integral(b)) {
        int64_t x = value_as_int(a), y = value_as_int(b);
        return x < y ? -1 : x > y;
    }
    double x = value_as_float(a), y = value_as_float(b);
    if (isnan(x) || isnan(y)) return 2;
    if (value_is_integral(a)) return compare_int_float(value_as_int(a), y);
    if (value_is_integral(b)) return -compare_int_float(value_as_int(b), x);
    return x < y ? -1 : x > y;
}

Status value_equal(Render *r, Value a, Value b, bool *out)
{
    Status status = OK;
    if (value_is_number(a) && value_is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return OK;
    }
    if (a.type == V_OPEN || b.type == V_OPEN) return open_equal(r, a, b, out);
    if (a.type != b.type) {
        *out = false;
        return OK;
    }
    switch ((ValueType)a.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: *out = true; return OK;
    case V_STRING:
        *out = str_same(value_str(a), value_str(b));
        return render_tick(r, a.len >> 10);
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
        TRY(enter(r));
        status = a.type == V_VIEW   ? equal_views(r, a, b, out)
                 : a.type == V_DICT ? equal_dicts(r, a.dict, b.dict, out)
                                    : equal_lists(r, a, b, out);
        r->depth--;
        return status;
    case V_RANGE:
        *out = a.range->count == b.range->count &&
               (a.range->count == 0 ||
                (a.range->start == b.range->start && (a.range->count == 1 || a.range->step == b.range->step)));
        return OK;
    case V_FUNCTION: *out = a.len == b.len; return OK;
    default: *out = a.list == b.list; return OK;
    }
}

static Status compare_lists(Render *r, Value a, Value b, const char *op, int *out)
{
    for (uint32_t i = 0; i < a.list->count && i < b.list->count; i++) {
        bool same;
        TRY(value_equal(r, a.list->items[i], b.list->items[i], &same));
        if (!same) return value_compare(r, a.list->items[i], b.list->items[i], op, out);
    }
    *out = a.list->count < b.list->count ? -1 : a.list->count > b.list->count;
    return OK;
}

Status value_compare(Render *r, Value a, Value b, const char *op, int *out)
{
    if (a.type == V_UNDEFINED) return undefined_fail(r, a);
    if (b.type == V_UNDEFINED) return undefined_fail(r, b);
    if (value_is_number(a) && value_is_number(b)) {
        *out = compare_numbers(a, b);
        return OK;
    }
    if (a.type == V_STRING && b.type == V_STRING) {
        size_t shorter = a.len < b.len ? a.len : b.len;
        int    order = shorter ? memcmp(a.text, b.text, shorter) : 0;
        if (!order) order = a.len < b.len ? -1 : a.len > b.len;
        *out = order < 0 ? -1 : order > 0;
        return render_tick(r, (int64_t)(shorter >> 10));
    }
    if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
        TRY(enter(r));
        Status status = compare_lists(r, a, b, op, out);
        r->depth--;
        return status;
    }
    return render_fail(r, "'%s' is not supported between '%s' and '%s'", op, value_type_name(a), value_type_name(b));
}

Status value_contains(Render *r, Value item, Value container, bool *out)
{
    *out = false;
    if (container.type == V_OPEN) return open_contains(r, item, container, out);
    if (container.type == V_STRING) {
        if (item.type == V_UNDEFINED) return render_fail(r, "'in <string>' requires a string as left operand, not Undefined");
        if (item.type != V_STRING)
            return render_fail(r, "'in <string>' requires a string as left operand, not %s", value_type_name(item));
        TRY(render_tick(r, container.len >> 8));
        *out = text_find(value_str(container), value_str(item), 0) != SIZE_MAX;
        return OK;
    }
    if (container.type == V_DICT || (container.type == V_VIEW && container.view->kind == VIEW_KEYS)) {
        Value found;
        TRY(value_hashable(r, item));
        TRY(dict_get(r, container.type == V_DICT ? container.dict : container.view->dict, item, &found));
        *out = !value_is_missing(found);
        return OK;
    }
    if (!value_is_iterable(container)) return render_fail(r, "argument of type '%s' is not iterable", value_type_name(container));
    Iterator it;
    TRY(iterator_init(r, &it, container));
    for (bool done = false; !*out;) {
        Value one;
        TRY(iterator_next(r, &it, &one, &done));
        if (done) break;
        TRY(value_equal(r, one, item, out));
    }
    return OK;
}

Status value_hashable(Render *r, Value key)
{
    if (key.type == V_OPEN) return open_stop(r);
    if (key.type == V_LIST || key.type == V_DICT) return render_fail(r, "unhashable type: '%s'", value_type_name(key));
    if (key.type != V_TUPLE) return OK;
    TRY(enter(r));
    for (uint32_t i = 0; i < key.list->count; i++) TRY(value_hashable(r, key.list->items[i]));
    r->depth--;
    return OK;
}

Value dict_get_text(const Dict *dict, Str key)
{
    for (uint32_t i = 0; i < dict->count; i++) {
        const Value *other = &dict->entries[i].key;
        if (other->type == V_STRING && other->len == key.len && memcmp(other->text, key.data, key.len) == 0)
            return dict->entries[i].value;
    }
    return (Value){ 0 };
}

Status dict_get(Render *r, const Dict *dict, Value key, Value *out)
{
    TRY(render_tick(r, dict->count >> 4));
    *out = (Value){ 0 };
    if (key.type == V_OPEN) return open_stop(r);
    if (key.type == V_STRING) {
        *out = dict_get_text(dict, value_str(key));
        return OK;
    }
    for (uint32_t i = 0; i < dict->count; i++) {
        bool same;
        if (dict->entries[i].key.type == V_STRING) continue;
        TRY(value_equal(r, dict->entries[i].key, key, &same));
        if (!same) continue;
        *out = dict->entries[i].value;
        break;
    }
    return OK;
}

Status dict_set(Render *r, Dict *dict, Value key, Value value)
{
    TRY(value_hashable(r, key));
    TRY(render_tick(r, dict->count >> 4));
    for (uint32_t i = 0; i < dict->count; i++) {
        bool same;
        TRY(value_equal(r, dict->entries[i].key, key, &same));
        if (!same) continue;
        dict->entries[i].value = value;
        return OK;
    }
    if (dict->count == dict->capacity) {
        uint32_t   capacity = dict->capacity ? dict->capacity * 2 : 4;
        DictEntry *entries = arena_array(&r->arena, DictEntry, capacity);
        if (dict->count) memcpy(entries, dict->entries, dict->count * sizeof *entries);
        dict->entries = entries;
        dict->capacity = capacity;
    }
    dict->entries[dict->count++] = (DictEntry){ key, value };
    return OK;
}

static Value text_of_json(Str text)
{
    Value v = value_text(text.data, text.len);
    if (text_is_ascii(text.data, text.len)) v.flags = VALUE_ASCII;
    return v;
}

/* Texts stay where the JSON has them. */
Status value_from_json(Arena *arena, const JsonValue *json, Value *out)
{
    *out = value_none();
    if (!json) return OK;
    switch (json->type) {
    case JSON_NULL: break;
    case JSON_BOOL: *out = value_bool(json->boolean); break;
    case JSON_INT: *out = value_int(json->integer); break;
    case JSON_DOUBLE:
        *out = json->count && json->number == 0 ? value_int(0) : value_float(json->number);
        if (out->type == V_FLOAT && json->count) out->flags = VALUE_TOO_BIG;
        break;
    case JSON_STRING:
        FAIL_IF(json->string.len > RENDER_MAX_TEXT_BYTES, ERR_INVALID, "a text of %zu bytes is too long for a template",
                json->string.len);
        *out = text_of_json(json->string);
        break;
    case JSON_ARRAY: {
        List *list = arena_new(arena, List);
        list->items = arena_array(arena, Value, json->count);
        list->count = json->count;
        for (uint32_t i = 0; i < json->count; i++) TRY(value_from_json(arena, &json->items[i], &list->items[i]));
        *out = (Value){ .type = V_LIST, .list = list };
        break;
    }
    case JSON_OBJECT: {
        Dict *dict = arena_new(arena, Dict);
        dict->entries = arena_array(arena, DictEntry, json->count);
        dict->count = dict->capacity = json->count;
        for (uint32_t i = 0; i < json->count; i++) {
            dict->entries[i].key = text_of_json(json->members[i].key);
            TRY(value_from_json(arena, &json->members[i].value, &dict->entries[i].value));
        }
        *out = (Value){ .type = V_DICT, .dict = dict };
        break;
    }
    }
    return OK;
}
