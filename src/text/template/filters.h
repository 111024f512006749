/* Every filter: FILTER(function, name, parameters). Texts and numbers are in template_filters.c, sequences in
 * template_filters_seq.c. */
#pragma once

#include "text/template/eval.h"

#define TEMPLATE_FILTERS(X)                                                                          \
    X(abs, "abs", "") X(attr, "attr", "!name") X(batch, "batch", "!linecount fill_with")              \
    X(capitalize, "capitalize", "") X(center, "center", "width") X(length, "count", "")               \
    X(default, "d", "default_value boolean") X(default, "default", "default_value boolean")           \
    X(dictsort, "dictsort", "case_sensitive by reverse") X(escape, "e", "") X(escape, "escape", "")   \
    X(filesizeformat, "filesizeformat", "binary") X(first, "first", "") X(float, "float", "default")  \
    X(forceescape, "forceescape", "") X(format, "format", "*")                                        \
    X(groupby, "groupby", "!attribute default case_sensitive") X(indent, "indent", "width first blank") \
    X(int, "int", "default base") X(items, "items", "") X(join, "join", "d attribute")                \
    X(last, "last", "") X(length, "length", "") X(list, "list", "") X(lower, "lower", "")             \
    X(map, "map", "*") X(max, "max", "case_sensitive attribute") X(min, "min", "case_sensitive attribute") \
    X(reject, "reject", "*") X(rejectattr, "rejectattr", "*")                 \
    X(replace, "replace", "!old !new count") X(reverse, "reverse", "") X(round, "round", "precision method") \
    X(safe, "safe", "") X(select, "select", "*") X(selectattr, "selectattr", "*")                     \
    X(slice, "slice", "!slices fill_with") X(sort, "sort", "reverse case_sensitive attribute")        \
    X(string, "string", "") X(striptags, "striptags", "") X(sum, "sum", "attribute start")            \
    X(title, "title", "") X(tojson, "tojson", "ensure_ascii indent separators sort_keys")             \
    X(trim, "trim", "chars") X(truncate, "truncate", "length killwords end leeway")                   \
    X(unique, "unique", "case_sensitive attribute") X(upper, "upper", "") X(urlencode, "urlencode", "") \
    X(wordcount, "wordcount", "") X(xmlattr, "xmlattr", "autospace")

#define FILTER_FN(name) \
    Status filter_##name(Render *r, Value self, const Value *argv, const Args *args, Value *out)
#define UNUSED(x) ((void)(x))

/* "default" and "d" are one function: declared twice, which C allows. */
#define FILTER_DECLARE(fn, name, params) FILTER_FN(fn);
TEMPLATE_FILTERS(FILTER_DECLARE)
#undef FILTER_DECLARE

static inline Value arg_or(Value v, Value otherwise)
{
    return value_is_missing(v) ? otherwise : v;
}
NODISCARD Status arg_int(Render *r, Value v, const char *what, int64_t otherwise, int64_t *out);
NODISCARD Status arg_bool(Render *r, Value v, bool otherwise, bool *out);
