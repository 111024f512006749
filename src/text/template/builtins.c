/* Filters, tests and global functions: the tables, and what is short. */
#include "text/template/filters.h"
#include "text/template/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- filters ---- */

const Builtin template_filters[] = {
    {.name = "abs", filter_abs, ""},
    {.name = "attr", filter_attr, "!name"},
    {.name = "batch", filter_batch, "!linecount fill_with"},
    {.name = "capitalize", text_case, "", CASE_CAPITALIZE},
    {.name = "center", filter_center, "width"},
    {.name = "count", filter_length, ""},
    {.name = "d", filter_default, "default_value boolean"},
    {.name = "default", filter_default, "default_value boolean"},
    {.name = "dictsort", filter_dictsort, "case_sensitive by reverse"},
    {.name = "e", filter_escape, ""},
    {.name = "escape", filter_escape, ""},
    {.name = "filesizeformat", filter_filesizeformat, "binary"},
    {.name = "first", filter_first, ""},
    {.name = "float", filter_float, "default"},
    {.name = "forceescape", filter_escape, "", 1},
    {.name = "format", filter_format, "*"},
    {.name = "groupby", filter_groupby, "!attribute default case_sensitive"},
    {.name = "indent", filter_indent, "width first blank"},
    {.name = "int", filter_int, "default base"},
    {.name = "items", filter_items, ""},
    {.name = "join", filter_join, "d attribute"},
    {.name = "last", filter_last, ""},
    {.name = "length", filter_length, ""},
    {.name = "list", filter_list, ""},
    {.name = "lower", text_case, "", CASE_LOWER},
    {.name = "map", filter_map, "*"},
    {.name = "max", filter_extreme, "case_sensitive attribute", 1},
    {.name = "min", filter_extreme, "case_sensitive attribute"},
    {.name = "reject", filter_select, "*", SELECT_NOT},
    {.name = "rejectattr", filter_select, "*", SELECT_NOT | SELECT_ATTRIBUTE},
    {.name = "replace", filter_replace, "!old !new count"},
    {.name = "reverse", filter_reverse, ""},
    {.name = "round", filter_round, "precision method"},
    {.name = "safe", filter_safe, ""},
    {.name = "select", filter_select, "*"},
    {.name = "selectattr", filter_select, "*", SELECT_ATTRIBUTE},
    {.name = "slice", filter_slice, "!slices fill_with"},
    {.name = "sort", filter_sort, "reverse case_sensitive attribute"},
    {.name = "string", filter_string, ""},
    {.name = "striptags", filter_striptags, ""},
    {.name = "sum", filter_sum, "attribute start"},
    {.name = "title", filter_title, ""},
    {.name = "tojson", filter_tojson, "ensure_ascii indent separators sort_keys"},
    {.name = "trim", text_trim, "chars", SIDE_BOTH},
    {.name = "truncate", filter_truncate, "length killwords end leeway"},
    {.name = "unique", filter_unique, "case_sensitive attribute"},
    {.name = "upper", text_case, "", CASE_UPPER},
    {.name = "urlencode", filter_urlencode, ""},
    {.name = "wordcount", filter_wordcount, ""},
    {.name = "xmlattr", filter_xmlattr, "autospace"},
    {0},
};

/* ---- tests: what stands after `is` ---- */

/* Of a type; `mode` is a set of them. */
static Value test_type(Render *r, const Call *c)
{
    Value v = c->self;
    (void)r;
    if (v.type == V_FLOAT && (v.flags & VALUE_TOO_BIG)) v.type = V_INT;
    return value_bool(value_is(v, c->mode));
}

static Value test_truth(Render *r, const Call *c)
{
    (void)r;
    return value_bool(c->self.type == V_BOOL && c->self.boolean == (c->mode != 0));
}

static Value test_escaped(Render *r, const Call *c)
{
    (void)r;
    return value_bool(value_is_markup(c->self));
}

static Value remainder_is(Render *r, Value v, Value divisor, int64_t wanted)
{
    return value_bool(value_equal(r, value_binary(r, T_MOD, v, divisor), value_int(wanted)));
}

/* even and odd, by `mode`. */
static Value test_parity(Render *r, const Call *c)
{
    return remainder_is(r, c->self, value_int(2), c->mode);
}

static Value test_divisibleby(Render *r, const Call *c)
{
    return remainder_is(r, c->self, c->argv[0], 0);
}

/* `mode`: a TokenKind, as in a comparison. */
static Value test_compare(Render *r, const Call *c)
{
    return value_bool(value_is_ordered(r, (TokenKind)c->mode, c->self, c->argv[0]));
}

/* The same object; small values are one object each. */
static Value test_sameas(Render *r, const Call *c)
{
    Value a = c->self, b = c->argv[0];
    bool  is_object = value_is(a, TYPES_ARRAY) || a.type >= V_DICT;
    return value_bool(a.type == b.type && (is_object ? a.list == b.list : value_equal(r, a, b)));
}

/* A filter or a test by name. */
static Value test_known(Render *r, const Call *c)
{
    value_hashable(r, c->self);
    return value_bool(c->self.type == V_STRING && builtin_find(c->mode ? template_tests : template_filters, value_str(c->self)));
}

enum { ANY = -1, CALLABLE = 1 << V_FUNCTION | 1 << V_METHOD | 1 << V_MACRO | TYPE_LOOP | 1 << V_JOINER | TYPE_UNDEFINED };

const Builtin template_tests[] = {
    {.name = "defined", test_type, "", ANY & ~TYPE_UNDEFINED},
    {.name = "undefined", test_type, "", TYPE_UNDEFINED},
    {.name = "none", test_type, "", 1 << V_NONE},
    {.name = "string", test_type, "", TYPE_STRING},
    {.name = "mapping", test_type, "", TYPE_DICT},
    {.name = "iterable", test_type, "", TYPES_ITERABLE},
    {.name = "sequence", test_type, "", TYPES_SLICED | TYPE_DICT | TYPE_UNDEFINED},
    {.name = "boolean", test_type, "", TYPE_BOOL},
    {.name = "integer", test_type, "", 1 << V_INT},
    {.name = "float", test_type, "", TYPE_FLOAT},
    {.name = "number", test_type, "", TYPES_NUMBER},
    {.name = "callable", test_type, "", CALLABLE},
    {.name = "true", test_truth, "", 1},
    {.name = "false", test_truth, "", 0},
    {.name = "escaped", test_escaped, ""},
    {.name = "even", test_parity, "", 0},
    {.name = "odd", test_parity, "", 1},
    {.name = "divisibleby", test_divisibleby, "!num"},
    {.name = "eq", test_compare, "!other", T_EQ},
    {.name = "equalto", test_compare, "!other", T_EQ},
    {.name = "==", test_compare, "!other", T_EQ},
    {.name = "ne", test_compare, "!other", T_NE},
    {.name = "!=", test_compare, "!other", T_NE},
    {.name = "lt", test_compare, "!other", T_LT},
    {.name = "lessthan", test_compare, "!other", T_LT},
    {.name = "<", test_compare, "!other", T_LT},
    {.name = "le", test_compare, "!other", T_LE},
    {.name = "<=", test_compare, "!other", T_LE},
    {.name = "gt", test_compare, "!other", T_GT},
    {.name = "greaterthan", test_compare, "!other", T_GT},
    {.name = ">", test_compare, "!other", T_GT},
    {.name = "ge", test_compare, "!other", T_GE},
    {.name = ">=", test_compare, "!other", T_GE},
    {.name = "in", test_compare, "!seq", T_IN},
    {.name = "sameas", test_sameas, "!other"},
    {.name = "lower", text_cased, "", CASE_LOWER},
    {.name = "upper", text_cased, "", CASE_UPPER},
    {.name = "filter", test_known, "", 0},
    {.name = "test", test_known, "", 1},
    {0},
};

/* ---- global functions; raise_exception and strftime_now are what transformers adds ---- */

static Value function_range(Render *r, const Call *c)
{
    const Args *args = c->args;
    int64_t     bounds[3] = {0, 0, 1};
    if (args->num_keywords || args->count < 1 || args->count > 3) render_fail(r, "range() takes 1 to 3 integers");
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

/* dict and namespace, by `mode`: the type. */
static Value function_dict(Render *r, const Call *c)
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
    for (uint32_t i = 0; i < args->num_keywords; i++) dict_set(r, dict, value_of_str(args->keywords[i].name), args->keywords[i].value);
    return (Value){.type = (uint8_t)c->mode, .dict = dict};
}

static Value function_cycler(Render *r, const Call *c)
{
    if (!c->args->count || c->args->num_keywords) render_fail(r, "cycler(): at least one item has to be provided");
    Value v = {.type = V_CYCLER, .cycler = arena_new(&r->arena, Cycler)};
    v.cycler->items = (List){.items = (Value *)c->args->items, .count = c->args->count};
    return v;
}

static Value function_joiner(Render *r, const Call *c)
{
    Value v = {.type = V_JOINER, .cycler = arena_new(&r->arena, Cycler)};
    v.cycler->text = value_or(c->argv[0], value_text(", ", 2));
    return v;
}

static Value function_raise_exception(Render *r, const Call *c)
{
    Value text = value_to_text(r, c->argv[0]);
    render_fail(r, "%.*s", (int)(text.len < 1500 ? text.len : 1500), text.text);
}

/* Python's datetime.now(): %f are microseconds; it knows of no time zone, so %z and %Z are nothing. */
static Value function_strftime_now(Render *r, const Call *c)
{
    enum { MAX_FORMAT = 200 };
    char            text[16384], format[1 + MAX_FORMAT * 3 + 1] = "-"; /* no time's text is empty then */
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

const Builtin template_functions[] = {
    {.name = "range", function_range, "*"},
    {.name = "dict", function_dict, "*", V_DICT},
    {.name = "namespace", function_dict, "*", V_NAMESPACE},
    {.name = "cycler", function_cycler, "*"},
    {.name = "joiner", function_joiner, "sep"},
    {.name = "raise_exception", function_raise_exception, "!message"},
    {.name = "strftime_now", function_strftime_now, "!format"},
    {0},
};
