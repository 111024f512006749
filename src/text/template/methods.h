/* Methods of Python's types, by the interned index of their name. */
#pragma once

#include "text/template/eval.h"

#define TEMPLATE_METHODS(X)                                                                                            \
    X(capitalize) X(casefold) X(center) X(count) X(endswith) X(expandtabs) X(find) X(format) X(format_map) X(index)     \
    X(isalnum) X(isalpha) X(isascii) X(isdecimal) X(isdigit) X(isidentifier) X(islower) X(isnumeric) X(isprintable)     \
    X(isspace) X(istitle) X(isupper) X(join) X(ljust) X(lower) X(lstrip) X(partition) X(removeprefix) X(removesuffix)   \
    X(replace) X(rfind) X(rindex) X(rjust) X(rpartition) X(rsplit) X(rstrip) X(split) X(splitlines) X(startswith)       \
    X(strip) X(swapcase) X(title) X(upper) X(zfill) X(encode) X(maketrans) X(translate)                                 \
    X(copy) X(append) X(clear) X(extend) X(insert) X(pop) X(remove) X(reverse) X(sort)                                  \
    X(get) X(items) X(keys) X(values) X(fromkeys) X(popitem) X(setdefault) X(update)                                    \
    X(cycle) X(changed) X(next) X(reset) X(is_integer) X(bit_length)                                                    \
    X(as_integer_ratio) X(bit_count) X(conjugate) X(hex) X(to_bytes)

typedef enum MethodId {
#define METHOD(name) M_##name,
    TEMPLATE_METHODS(METHOD)
#undef METHOD
    METHOD_COUNT
} MethodId;

extern const char *const template_method_names[METHOD_COUNT];

#define METHOD_FN(fn) static Status fn(Render *r, Value self, const Value *argv, const Args *args, Value *out)
#define UNUSED(x) ((void)(x))
/* One that Python has and we don't. */
#define METHOD_UNSUPPORTED(name)                                                \
    METHOD_FN(unsupported_##name)                                               \
    {                                                                           \
        UNUSED(self), UNUSED(argv), UNUSED(args), UNUSED(out);                  \
        return render_fail(r, "the method " #name "() is not supported");       \
    }
#define UNSUPPORTED(name) [M_##name] = { #name, unsupported_##name, "*" }

typedef struct MethodTable {
    Builtin methods[METHOD_COUNT]; /* name NULL: the type has none of that name; call NULL: it would change the object */
} MethodTable;

extern const MethodTable template_text_methods, template_list_methods, template_tuple_methods, template_dict_methods,
    template_range_methods, template_number_methods, template_loop_methods, template_cycler_methods;

/* The type's table, or NULL. */
const MethodTable *method_table_of(Value object);

/* template_op.c */
NODISCARD Status value_to_markup(Render *r, Value v, Value *out); /* escaped unless it is markup */
