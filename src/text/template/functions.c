/* Global functions. raise_exception and strftime_now are what transformers adds. */
#include "text/template/filters.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define FUNCTION_FN(name) static Status function_##name(Render *r, Value self, const Value *argv, const Args *args, Value *out)

FUNCTION_FN(range)
{
    int64_t bounds[3] = { 0, 0, 1 };
    UNUSED(self), UNUSED(argv);
    if (args->num_keywords || args->count < 1 || args->count > 3) return render_fail(r, "range() takes 1 to 3 integers");
    for (uint32_t i = 0; i < args->count; i++) {
        if (args->items[i].type == V_UNDEFINED) return undefined_fail(r, args->items[i]);
        TRY(arg_int(r, args->items[i], "range: an argument", 0, &bounds[args->count == 1 ? 1 : i]));
    }
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (step == 0) return render_fail(r, "range: the step must not be zero");
    __int128 distance = (__int128)stop - start, count = 0;
    if ((distance > 0) == (step > 0) && distance != 0) count = (distance + step - (step > 0 ? 1 : -1)) / step;
    if (count > RENDER_MAX_RANGE) return render_fail(r, "range: more than %d items", RENDER_MAX_RANGE);
    Range *range = arena_new(&r->arena, Range);
    *range = (Range){ start, stop, step, (int64_t)count };
    *out = (Value){ .type = V_RANGE, .range = range };
    return OK;
}

static Status fill_dict(Render *r, Dict *dict, const Args *args, const char *what)
{
    if (args->count > 1) return render_fail(r, "%s() takes at most one argument", what);
    if (args->count && args->items[0].type == V_DICT) {
        const Dict *from = args->items[0].dict;
        for (uint32_t i = 0; i < from->count; i++) TRY(dict_set(r, dict, from->entries[i].key, from->entries[i].value));
    } else if (args->count) {
        List list, pair;
        TRY(value_to_list(r, args->items[0], &list));
        for (uint32_t i = 0; i < list.count; i++) {
            TRY(value_to_list(r, list.items[i], &pair));
            if (pair.count != 2) return render_fail(r, "%s(): element %u is no pair", what, i);
            TRY(dict_set(r, dict, pair.items[0], pair.items[1]));
        }
    }
    for (uint32_t i = 0; i < args->num_keywords; i++) {
        Str name = args->keywords[i].name;
        TRY(dict_set(r, dict, value_text(name.data, name.len), args->keywords[i].value));
    }
    return OK;
}

FUNCTION_FN(dict)
{
    UNUSED(self), UNUSED(argv);
    *out = (Value){ .type = V_DICT, .dict = arena_new(&r->arena, Dict) };
    return fill_dict(r, out->dict, args, "dict");
}

FUNCTION_FN(namespace)
{
    UNUSED(self), UNUSED(argv);
    *out = (Value){ .type = V_NAMESPACE, .dict = arena_new(&r->arena, Dict) };
    return fill_dict(r, out->dict, args, "namespace");
}

FUNCTION_FN(cycler)
{
    UNUSED(self), UNUSED(argv);
    if (!args->count || args->num_keywords) return render_fail(r, "cycler(): at least one item has to be provided");
    Cycler *cycler = arena_new(&r->arena, Cycler);
    cycler->items = (List){ (Value *)args->items, args->count };
    *out = (Value){ .type = V_CYCLER, .cycler = cycler };
    return OK;
}

FUNCTION_FN(joiner)
{
    UNUSED(self), UNUSED(args);
    Cycler *joiner = arena_new(&r->arena, Cycler);
    joiner->text = arg_or(argv[0], value_text(", ", 2));
    *out = (Value){ .type = V_JOINER, .cycler = joiner };
    return OK;
}

FUNCTION_FN(raise_exception)
{
    Value text;
    UNUSED(self), UNUSED(args), UNUSED(out);
    TRY(value_to_text(r, argv[0], &text));
    return render_fail(r, "%.*s", (int)(text.len < 1500 ? text.len : 1500), text.text);
}

/* Python's datetime.now(): %f are microseconds; it knows of no time zone, so %z and %Z are nothing. */
FUNCTION_FN(strftime_now)
{
    enum { MAX_FORMAT = 200 };
    char            text[16384], format[1 + MAX_FORMAT * 3 + 1] = "-"; /* no time's text is empty then */
    size_t          n = 1;
    struct tm       broken;
    struct timespec now = { .tv_sec = (time_t)r->now_unix };
    Str             wanted = value_str(argv[0]);
    UNUSED(self), UNUSED(args);
    if (argv[0].type != V_STRING || wanted.len > MAX_FORMAT || memchr(wanted.data, 0, wanted.len))
        return render_fail(r, "strftime_now: expected a format of at most %d bytes without NUL", MAX_FORMAT);
    if (!r->now_unix) timespec_get(&now, TIME_UTC);
    for (size_t i = 0; i < wanted.len; i++) {
        bool percent = wanted.data[i] == '%' && i + 1 < wanted.len;
        if (percent && wanted.data[i + 1] == 'f') {
            n += (size_t)snprintf(format + n, sizeof format - n, "%06ld", now.tv_nsec / 1000);
            i++;
            continue;
        }
        format[n++] = wanted.data[i];
        if (percent) format[n++] = wanted.data[++i];
    }
    format[n] = 0;
    localtime_r(&now.tv_sec, &broken);
    broken.tm_isdst = -1;
    broken.tm_zone = "";
    size_t len = strftime(text, sizeof text, format, &broken);
    if (!len) return render_fail(r, "strftime_now: the text is longer than %zu bytes", sizeof text);
    *out = value_copy_text(r, text + 1, len - 1);
    return OK;
}

const Builtin template_functions[] = {
    { "range", function_range, "*" }, { "dict", function_dict, "*" }, { "namespace", function_namespace, "*" },
    { "cycler", function_cycler, "*" }, { "joiner", function_joiner, "sep" },
    { "raise_exception", function_raise_exception, "!message" }, { "strftime_now", function_strftime_now, "!format" },
};
const uint32_t template_num_functions = sizeof template_functions / sizeof template_functions[0];
