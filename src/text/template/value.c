/* Truth, equality, order and dictionaries, with Python's rules. Numbers compare across bool, int and float; lists and tuples compare
 * element by element. Values of other types are equal only if they are the same object. */
#include "text/template/open.h"
#include "text/template/render.h"
#include "text/template/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void render_fail(Render *r, const char *fmt, ...)
{
    char    message[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    (void)status_fail(ERR_INVALID, "%s:%d: %s", r->tmpl->name, r->line, message);
    longjmp(r->failed, 1);
}

void render_tick(Render *r, int64_t steps)
{
    r->steps += steps;
    if (r->steps > r->max_steps) render_fail(r, "the template takes more than %lld steps", (long long)r->max_steps);
    if (r->arena.used_bytes > RENDER_MAX_ARENA_BYTES)
        render_fail(r, "the template needs more than %d MiB of memory", RENDER_MAX_ARENA_BYTES >> 20);
}

void render_looks_at(Render *r, const Dict *dict, Str name)
{
    if (dict->message && r->turn && dict->message != r->turn) r->looks_around |= !name.data || !str_equal(name, "role");
}

void render_tick_chars(Render *r, size_t bytes)
{
    render_tick(r, (int64_t)(bytes >> 6));
}

void render_tick_dict(Render *r, const Dict *dict, size_t key_bytes)
{
    render_tick(r, (int64_t)(dict->count >> 4) + (int64_t)(dict->count * (key_bytes >> 8)));
}

void render_deeper(Render *r)
{
    if (r->depth++ >= RENDER_MAX_DEPTH) render_fail(r, "evaluation is nested deeper than %d: endless recursion?", RENDER_MAX_DEPTH);
}

const char *value_type_name(Value v)
{
    static const char *const names[] = {
        "missing", "Undefined", "NoneType",   "bool",      "int",         "float", "str",      "list",   "tuple", "dict",
        "range",   "generator", "dict_items", "Namespace", "LoopContext", "Macro", "function", "method", "str",
    };
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    if (v.type == V_VIEW && v.view) return views[v.view->kind];
    if (v.type == V_ITER && v.iter) return v.iter->name;
    return value_is_markup(v) ? "Markup" : names[v.type];
}

void undefined_fail(Render *r, Value undefined)
{
    Value       of = {.type = (uint8_t)(undefined.aux >> 8)};
    const char *object = of.type == V_NONE ? "None" : value_type_name(of);
    int         len = undefined.len < 500 ? (int)undefined.len : 500;
    switch ((UndefinedKind)(undefined.aux & 0xFF)) {
    case UNDEF_NAME:
        render_fail(r, "'%.*s' is undefined", len, undefined.text);
    case UNDEF_ATTRIBUTE:
        render_fail(r, "'%s object' has no attribute '%.*s'", object, len, undefined.text);
    case UNDEF_ELEMENT:
        render_fail(r, "%s object has no element %.*s", object, len, undefined.text);
    case UNDEF_UNSAFE:
        render_fail(r, "access to attribute '%.*s' of '%s' is unsafe", len, undefined.text, object);
    default:
        render_fail(r, "%.*s", len, undefined.text);
    }
}

void check_size(Render *r, Value v)
{
    if (v.type == V_FLOAT && (v.flags & VALUE_TOO_BIG))
        render_fail(r, "an integer of the data does not fit 64 bits, larger ones are not supported");
}

Value value_list(Render *r, ValueType type, List list)
{
    Value v = {.type = (uint8_t)type, .list = arena_new(&r->arena, List)};
    *v.list = list;
    return v;
}

void list_add(Render *r, List *list, Value v)
{
    list->items = arena_room(&r->arena, list->items, list->count + 1, &list->capacity, sizeof v);
    list->items[list->count++] = v;
    render_tick(r, 1);
}

void list_reverse(List list)
{
    for (uint32_t i = 0; i < list.count / 2; i++) {
        Value swap = list.items[i];
        list.items[i] = list.items[list.count - 1 - i];
        list.items[list.count - 1 - i] = swap;
    }
}

Value value_pair(Render *r, Value a, Value b)
{
    List pair = {.items = arena_array(&r->arena, Value, 2), .count = 2};
    pair.items[0] = a;
    pair.items[1] = b;
    return value_list(r, V_TUPLE, pair);
}

Value value_view(Render *r, Dict *dict, ViewKind kind)
{
    Value v = {.type = V_VIEW, .view = arena_new(&r->arena, View)};
    render_looks_at(r, dict, (Str){0});
    *v.view = (View){dict, kind};
    return v;
}

void text_check(Render *r, size_t bytes)
{
    if (bytes > RENDER_MAX_TEXT_BYTES) render_fail(r, "a text grows beyond %d MiB", RENDER_MAX_TEXT_BYTES >> 20);
    render_tick(r, (int64_t)(bytes >> 10));
}

void text_fits(Render *r)
{
    if (r->out.len > RENDER_MAX_TEXT_BYTES) text_check(r, r->out.len);
}

Value text_take(Render *r, size_t begin)
{
    size_t len = r->out.len - begin;
    text_check(r, len);
    r->out.len = begin;
    return value_text(arena_strndup(&r->arena, strbuf_cstr(&r->out) + begin, len), len);
}

bool value_truth(Render *r, Value v)
{
    if (v.type == V_OPEN) return open_truth(r, v);
    if (v.type == V_STRING) return v.len != 0;
    if (v.type == V_FLOAT) return v.number != 0;
    if (value_is(v, TYPES_INTEGRAL)) return value_as_int(v) != 0;
    if (value_is(v, TYPES_ARRAY | TYPE_DICT | TYPE_RANGE | TYPE_LOOP | 1 << V_VIEW)) return value_length(r, v) != 0;
    return v.type > V_NONE;
}

int64_t value_length(Render *r, Value v)
{
    if (v.type == V_UNDEFINED) return 0;
    if (value_is(v, TYPES_ARRAY)) return v.list->count;
    if (v.type == V_DICT) return v.dict->count;
    if (v.type == V_RANGE) return v.range->count;
    if (v.type == V_VIEW) return v.view->dict->count;
    if (v.type == V_LOOP) return loop_length(r, v.loop);
    if (v.type != V_STRING) render_fail(r, "object of type '%s' has no length", value_type_name(v));
    render_tick(r, v.len >> 10);
    return (int64_t)utf8_count(value_str(v));
}

/* ---- equality and order ---- */

static bool equal_lists(Render *r, const List *a, const List *b)
{
    bool same = a->count == b->count;
    for (uint32_t i = 0; same && a != b && i < a->count; i++) {
        render_tick(r, 1);
        same = value_equal(r, a->items[i], b->items[i]);
    }
    return same;
}

static bool equal_dicts(Render *r, const Dict *a, const Dict *b)
{
    bool same = a->count == b->count;
    render_looks_at(r, a, (Str){0});
    for (uint32_t i = 0; same && a != b && i < a->count; i++) {
        render_tick(r, 1);
        Value other = dict_get(r, b, a->entries[i].key);
        same = !value_is_missing(other) && value_equal(r, a->entries[i].value, other);
    }
    return same;
}

/* long double has 64 bits of mantissa, so int64 and double convert without rounding. */
static int compare_numbers(Value a, Value b)
{
    long double x = a.type == V_FLOAT ? (long double)a.number : (long double)value_as_int(a);
    long double y = b.type == V_FLOAT ? (long double)b.number : (long double)value_as_int(b);
    return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
}

static bool equal_containers(Render *r, Value a, Value b)
{
    render_deeper(r);
    render_tick(r, 1);
    bool same = a.type == V_DICT ? equal_dicts(r, a.dict, b.dict) : equal_lists(r, a.list, b.list);
    r->depth--;
    return same;
}

bool value_equal(Render *r, Value a, Value b)
{
    if (value_is(a, TYPES_NUMBER) && value_is(b, TYPES_NUMBER)) return compare_numbers(a, b) == 0;
    if (a.type == V_OPEN || b.type == V_OPEN) return open_equal(r, a, b);
    if (a.type != b.type) return false;
    if (a.type <= V_NONE) return true;
    if (value_is(a, TYPES_ARRAY | TYPE_DICT)) return equal_containers(r, a, b);
    if (a.type == V_VIEW || a.type == V_RANGE) render_fail(r, "comparing a %s is not supported", value_type_name(a));
    if (a.type != V_STRING) return a.list == b.list;
    render_tick(r, a.len >> 10);
    return str_same(value_str(a), value_str(b));
}

static int compare_lists(Render *r, const List *a, const List *b, const char *op)
{
    for (uint32_t i = 0; i < a->count && i < b->count; i++) {
        render_tick(r, 1);
        if (!value_equal(r, a->items[i], b->items[i])) return value_compare(r, a->items[i], b->items[i], op);
    }
    return (a->count > b->count) - (a->count < b->count);
}

static int compare_texts(Render *r, Str a, Str b)
{
    size_t shorter = a.len < b.len ? a.len : b.len;
    int    order = shorter ? memcmp(a.data, b.data, shorter) : 0;
    render_tick(r, 1 + (int64_t)(shorter >> 10));
    return order ? (order > 0) - (order < 0) : (a.len > b.len) - (a.len < b.len);
}

int value_compare(Render *r, Value a, Value b, const char *op)
{
    if (a.type == V_UNDEFINED) undefined_fail(r, a);
    if (b.type == V_UNDEFINED) undefined_fail(r, b);
    if (value_is(a, TYPES_NUMBER) && value_is(b, TYPES_NUMBER)) return compare_numbers(a, b);
    if (a.type == V_STRING && b.type == V_STRING) return compare_texts(r, value_str(a), value_str(b));
    if (a.type != b.type || !value_is(a, TYPES_ARRAY))
        render_fail(r, "'%s' is not supported between '%s' and '%s'", op, value_type_name(a), value_type_name(b));
    render_deeper(r);
    int order = compare_lists(r, a.list, b.list, op);
    r->depth--;
    return order;
}

bool value_contains(Render *r, Value item, Value container)
{
    Value one;
    if (container.type == V_OPEN) return open_contains(r, item, container);
    if (container.type == V_STRING) {
        if (item.type != V_STRING) render_fail(r, "'in <string>' requires a string as left operand, not %s", value_type_name(item));
        render_tick_chars(r, container.len);
        return text_find(value_str(container), value_str(item), 0) != SIZE_MAX;
    }
    if (container.type == V_DICT || (container.type == V_VIEW && container.view->kind == VIEW_KEYS)) {
        value_hashable(r, item);
        return !value_is_missing(dict_get(r, container.type == V_DICT ? container.dict : container.view->dict, item));
    }
    for (Iterator it = iterator_of(r, container); iterator_next(r, &it, &one);)
        if (value_equal(r, one, item)) return true;
    return false;
}

/* ---- dictionaries ---- */

void value_hashable(Render *r, Value key)
{
    if (key.type == V_OPEN) open_stop(r);
    if (key.type == V_LIST || key.type == V_DICT) render_fail(r, "unhashable type: '%s'", value_type_name(key));
    if (key.type != V_TUPLE) return;
    render_deeper(r);
    render_tick(r, 1 + key.list->count);
    for (uint32_t i = 0; i < key.list->count; i++) value_hashable(r, key.list->items[i]);
    r->depth--;
}

Value dict_get_text(const Dict *dict, Str key)
{
    for (uint32_t i = 0; i < dict->count; i++) {
        const Value *other = &dict->entries[i].key;
        if (other->type == V_STRING && str_same(value_str(*other), key)) return dict->entries[i].value;
    }
    return (Value){0};
}

static DictEntry *find_entry(Render *r, const Dict *dict, Value key)
{
    for (uint32_t i = 0; i < dict->count; i++)
        if (value_equal(r, dict->entries[i].key, key)) return &dict->entries[i];
    return NULL;
}

Value dict_get(Render *r, const Dict *dict, Value key)
{
    render_tick_dict(r, dict, key.type == V_STRING ? key.len : 0);
    if (key.type == V_OPEN) open_stop(r);
    render_looks_at(r, dict, key.type == V_STRING ? value_str(key) : (Str){0});
    if (key.type == V_STRING) return dict_get_text(dict, value_str(key));
    DictEntry *entry = find_entry(r, dict, key);
    return entry ? entry->value : (Value){0};
}

void dict_set(Render *r, Dict *dict, Value key, Value value)
{
    value_hashable(r, key);
    render_tick_dict(r, dict, 0); /* value_equal counts the bytes of the keys */
    DictEntry *entry = find_entry(r, dict, key);
    if (entry) {
        entry->value = value;
        return;
    }
    dict->entries = arena_room(&r->arena, dict->entries, dict->count + 1, &dict->capacity, sizeof *dict->entries);
    dict->entries[dict->count++] = (DictEntry){key, value};
}

int64_t number_of(Str text)
{
    int64_t number = 0;
    if (!text.len || text.len > 17) return -1;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return -1;
        number = number * 10 + (text.data[i] - '0');
    }
    return number;
}

/* ---- JSON ---- */

static Value dict_of_json(Render *r, const JsonValue *json)
{
    Dict *dict = arena_new(&r->arena, Dict);
    dict->entries = arena_array(&r->arena, DictEntry, json->count);
    dict->count = dict->capacity = json->count;
    for (uint32_t i = 0; i < json->count; i++)
        dict->entries[i] = (DictEntry){value_of_str(json->members[i].key), value_from_json(r, &json->members[i].value)};
    return value_dict(dict);
}

/* Strings aren't copied: they point into the JSON value. */
Value value_from_json(Render *r, const JsonValue *json)
{
    if (!json) return value_none();
    switch (json->type) {
    case JSON_BOOL:
        return value_bool(json->boolean);
    case JSON_INT:
        return value_int(json->integer);
    case JSON_DOUBLE: {
        Value v = value_float(json->number); /* count 1: the number was written as an integer */
        if (json->count) v.flags = VALUE_TOO_BIG;
        return json->count && json->number == 0 ? value_int(0) : v;
    }
    case JSON_STRING:
        if (json->string.len > RENDER_MAX_TEXT_BYTES) render_fail(r, "a text of %zu bytes is too long", json->string.len);
        return value_of_str(json->string);
    case JSON_ARRAY: {
        List list = {.items = arena_array(&r->arena, Value, json->count), .count = json->count};
        for (uint32_t i = 0; i < json->count; i++) list.items[i] = value_from_json(r, &json->items[i]);
        return value_list(r, V_LIST, list);
    }
    case JSON_OBJECT:
        return dict_of_json(r, json);
    default:
        return value_none();
    }
}
