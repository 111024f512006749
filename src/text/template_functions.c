/* Global functions. raise_exception and strftime_now are what transformers adds. */
#include "text/template_filters.h"

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
    *range = (Range){ start, step, (int64_t)count };
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
    Value text = argv[0];
    UNUSED(self), UNUSED(args), UNUSED(out);
    if (text.type == V_UNDEFINED) text = value_text("", 0);
    TRY(value_to_text(r, text, &text));
    return render_fail(r, "%.*s", (int)(text.len < 1500 ? text.len : 1500), text.text);
}

FUNCTION_FN(strftime_now)
{
    char      text[1024];
    struct tm broken;
    time_t    now = r->now_unix ? (time_t)r->now_unix : time(NULL);
    UNUSED(self), UNUSED(args);
    if (argv[0].type != V_STRING || argv[0].len > 200) return render_fail(r, "strftime_now: expected a format of at most 200 bytes");
    char *format = arena_printf(&r->arena, "%.*s", (int)argv[0].len, argv[0].text);
    localtime_r(&now, &broken);
    size_t len = strftime(text, sizeof text, format, &broken);
    *out = value_copy_text(r, text, len);
    return OK;
}

const Builtin template_functions[] = {
    { "range", function_range, "*" }, { "dict", function_dict, "*" }, { "namespace", function_namespace, "*" },
    { "cycler", function_cycler, "*" }, { "joiner", function_joiner, "sep" },
    { "raise_exception", function_raise_exception, "!message" }, { "strftime_now", function_strftime_now, "!format" },
};
const uint32_t template_num_functions = sizeof template_functions / sizeof template_functions[0];
