/* Tests, global functions, and the tables of everything that a template may call. */
#include "text/template/render.h"
#include "text/template/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Tests true and false; `mode`: the truth value. */
Value test_truth(Render *r, const Call *c)
{
    return value_bool(c->self.type == V_BOOL && value_truth(r, c->self) == c->mode);
}

/* Tests of a value's type; `mode`: a set of types. */
Value test_type(Render *r, const Call *c)
{
    Value v = c->self;
    (void)r;
    if (v.type == V_FLOAT && (v.flags & VALUE_TOO_BIG)) v.type = V_INT;
    return value_bool(value_is(v, c->mode));
}

/* Tests divisibleby, even and odd; even and odd divide by 2. `mode`: the expected remainder. */
Value test_remainder(Render *r, const Call *c)
{
    return value_bool(value_equal(r, value_binary(r, T_MOD, c->self, value_or(c->argv[0], value_int(2))), value_int(c->mode)));
}

/* Tests of a comparison; `mode`: a TokenKind. */
Value test_compare(Render *r, const Call *c)
{
    return value_bool(value_is_ordered(r, (TokenKind)c->mode, c->self, c->argv[0]));
}

/* Test sameas: whether both values are the same object. Values without identity, such as numbers and texts, are compared by value. */
Value test_sameas(Render *r, const Call *c)
{
    Value a = c->self, b = c->argv[0];
    bool  is_object = value_is(a, TYPES_ARRAY) || a.type >= V_DICT;
    return value_bool(a.type == b.type && (is_object ? a.list == b.list : value_equal(r, a, b)));
}

Value function_range(Render *r, const Call *c)
{
    const Args *args = c->args;
    int64_t     bounds[3] = {0, 0, 1};
    if (args->keywords.count || args->count < 1 || args->count > 3) render_fail(r, "range() takes 1 to 3 integers");
    for (uint32_t i = 0; i < args->count; i++) {
        if (args->items[i].type == V_UNDEFINED) undefined_fail(r, args->items[i]);
        bounds[args->count == 1 ? 1 : i] = arg_int(r, args->items[i], "range: an argument", 0);
    }
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (step == 0) render_fail(r, "range: the step must not be zero");
    __int128 distance = (__int128)stop - start, count = 0;
    if ((distance > 0) == (step > 0) && distance != 0) count = (distance + step - (step > 0 ? 1 : -1)) / step;
    if (count > RENDER_MAX_RANGE) render_fail(r, "range: more than %d items", RENDER_MAX_RANGE);
    Value v = {.type = V_RANGE, .range = arena_new(&r->arena, Range)};
    *v.range = (Range){start, stop, step, (int64_t)count};
    return v;
}

/* dict() and namespace(); `mode`: the ValueType of the result. */
Value function_dict(Render *r, const Call *c)
{
    const Args *args = c->args;
    Value       source = args->count ? args->items[0] : (Value){0}, item;
    Dict       *dict = arena_new(&r->arena, Dict);
    if (args->count > 1) render_fail(r, "dict and namespace take at most one argument that isn't named");
    if (source.type == V_DICT) source = value_view(r, source.dict, VIEW_ITEMS);
    Iterator it = {0};
    if (args->count) it = iterator_of(r, source);
    while (args->count && iterator_next(r, &it, &item)) {
        List pair = value_to_list(r, item);
        if (pair.count != 2) render_fail(r, "an element of what a dict is made of is no pair");
        dict_set(r, dict, pair.items[0], pair.items[1]);
    }
    for (uint32_t i = 0; i < args->keywords.count; i++) dict_set(r, dict, args->keywords.entries[i].key, args->keywords.entries[i].value);
    return (Value){.type = (uint8_t)c->mode, .dict = dict};
}

Value function_raise_exception(Render *r, const Call *c)
{
    Value text = value_to_text(r, c->argv[0]);
    render_fail(r, "%.*s", (int)(text.len < 1500 ? text.len : 1500), text.text);
}

/* Formats Python's datetime.now(). %f: microseconds. %z and %Z are empty, because that time has no time zone. */
Value function_strftime_now(Render *r, const Call *c)
{
    enum { MAX_FORMAT = 200 };
    char            text[16384], format[1 + MAX_FORMAT * 3 + 1] = "-"; /* begins with "-", so that a result of length 0 means an error */
    size_t          n = 1;
    struct tm       broken;
    struct timespec now = {.tv_sec = (time_t)r->now_unix};
    Str             wanted = value_str(c->argv[0]);
    if (c->argv[0].type != V_STRING || wanted.len > MAX_FORMAT || memchr(wanted.data, 0, wanted.len))
        render_fail(r, "strftime_now: expected a format of at most %d bytes without NUL", MAX_FORMAT);
    if (!r->now_unix) timespec_get(&now, TIME_UTC);
    for (size_t i = 0; i < wanted.len; i++) {
        bool is_percent = wanted.data[i] == '%' && i + 1 < wanted.len;
        if (is_percent && wanted.data[i + 1] == 'f') {
            n += (size_t)snprintf(format + n, sizeof format - n, "%06ld", now.tv_nsec / 1000);
            i++;
            continue;
        }
        format[n++] = wanted.data[i];
        if (is_percent) format[n++] = wanted.data[++i];
    }
    format[n] = 0;
    localtime_r(&now.tv_sec, &broken);
    broken.tm_isdst = -1;
    broken.tm_zone = "";
    size_t len = strftime(text, sizeof text, format, &broken);
    if (!len) render_fail(r, "strftime_now: the text is longer than %zu bytes", sizeof text);
    return value_text(arena_strndup(&r->arena, text + 1, len - 1), len - 1);
}

Value function_missing(Render *r, const Call *c)
{
    render_fail(r, "%s is not supported", c->name);
}

/* `missing` and `refused` only mark rows: they are compared with builtin->call and never called. */
Value missing(Render *r, const Call *c)
{
    return function_missing(r, c);
}

Value refused(Render *r, const Call *c)
{
    return function_missing(r, c);
}

#define ROW(name, call, params, mode) {name, call, params, mode, 0},
const Builtin template_filters[] = {
#define FILTER ROW
#include "text/template/builtins.def"
    {0}};
const Builtin template_tests[] = {
#define TEST ROW
#include "text/template/builtins.def"
    {0}};
const Builtin template_functions[] = {
#define FUNCTION ROW
#include "text/template/builtins.def"
    {0}};
const Builtin template_methods[] = {
#define METHOD(types, name, call, params, mode) {name, call, params, mode, types},
#include "text/template/builtins.def"
    {0}};
