/* Methods of list, tuple, dict, numbers, loops and cyclers. A method that would change its object has a name and no
 * call: the sandbox answers with an undefined that complains when called. */
#include "text/template/methods.h"

#include <math.h>
#include <string.h>

#define REFUSED(name) [M_##name] = { #name, NULL, "" }

METHOD_FN(list_count)
{
    int64_t count = 0;
    UNUSED(args);
    for (uint32_t i = 0; i < self.list->count; i++) {
        bool same;
        TRY(value_equal(r, self.list->items[i], argv[0], &same));
        count += same;
    }
    *out = value_int(count);
    return render_tick(r, self.list->count);
}

METHOD_FN(list_index)
{
    int64_t start = 0, end = self.list->count;
    UNUSED(args);
    if (value_is_integral(argv[1])) start = value_as_int(argv[1]);
    if (value_is_integral(argv[2])) end = value_as_int(argv[2]);
    if (start < 0) start = start < -(int64_t)self.list->count ? 0 : start + self.list->count;
    if (end < 0) end += self.list->count;
    for (int64_t i = start; i < end && i < self.list->count; i++) {
        bool same;
        TRY(value_equal(r, self.list->items[i], argv[0], &same));
        if (!same) continue;
        *out = value_int(i);
        return render_tick(r, i);
    }
    return render_fail(r, "list.index: the value is not in the list");
}

METHOD_FN(list_copy)
{
    UNUSED(argv), UNUSED(args);
    List copy;
    TRY(value_to_list(r, self, &copy));
    *out = value_list(r, V_LIST, copy.items, copy.count);
    return OK;
}

/* Ranges: as the list of their items. */
static Status spread_range(Render *r, Value *self)
{
    List list;
    TRY(value_to_list(r, *self, &list));
    *self = value_list(r, V_LIST, list.items, list.count);
    return OK;
}

METHOD_FN(range_count)
{
    TRY(spread_range(r, &self));
    return list_count(r, self, argv, args, out);
}

METHOD_FN(range_index)
{
    TRY(spread_range(r, &self));
    return list_index(r, self, argv, args, out);
}

METHOD_FN(dict_get_method)
{
    UNUSED(args);
    TRY(value_hashable(r, argv[0]));
    TRY(dict_get(r, self.dict, argv[0], out));
    if (value_is_missing(*out)) *out = value_is_missing(argv[1]) ? value_none() : argv[1];
    return OK;
}

static Status make_view(Render *r, Value self, ViewKind kind, Value *out)
{
    View *view = arena_new(&r->arena, View);
    *view = (View){ self.dict, kind };
    *out = (Value){ .type = V_VIEW, .view = view };
    return OK;
}
METHOD_FN(dict_keys) { UNUSED(argv), UNUSED(args); return make_view(r, self, VIEW_KEYS, out); }
METHOD_FN(dict_values) { UNUSED(argv), UNUSED(args); return make_view(r, self, VIEW_VALUES, out); }
METHOD_FN(dict_items) { UNUSED(argv), UNUSED(args); return make_view(r, self, VIEW_ITEMS, out); }

METHOD_FN(dict_copy)
{
    UNUSED(argv), UNUSED(args);
    Dict *copy = arena_new(&r->arena, Dict);
    copy->entries = arena_array(&r->arena, DictEntry, self.dict->count);
    copy->count = copy->capacity = self.dict->count;
    if (copy->count) memcpy(copy->entries, self.dict->entries, copy->count * sizeof *copy->entries);
    *out = (Value){ .type = V_DICT, .dict = copy };
    return render_tick(r, copy->count >> 3);
}

METHOD_FN(dict_fromkeys)
{
    Dict *dict = arena_new(&r->arena, Dict);
    List  keys;
    UNUSED(self), UNUSED(args);
    TRY(value_to_list(r, argv[0], &keys));
    for (uint32_t i = 0; i < keys.count; i++)
        TRY(dict_set(r, dict, keys.items[i], value_is_missing(argv[1]) ? value_none() : argv[1]));
    *out = (Value){ .type = V_DICT, .dict = dict };
    return OK;
}

METHOD_FN(number_is_integer)
{
    UNUSED(argv), UNUSED(args);
    if (self.type != V_FLOAT) return render_fail(r, "'%s' has no attribute 'is_integer'", value_type_name(self));
    *out = value_bool(isfinite(self.number) && floor(self.number) == self.number);
    return OK;
}

METHOD_FN(number_bit_length)
{
    UNUSED(argv), UNUSED(args);
    if (self.type == V_FLOAT) return render_fail(r, "'float' has no attribute 'bit_length'");
    int64_t  i = value_as_int(self);
    uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    *out = value_int(magnitude ? 64 - __builtin_clzll(magnitude) : 0);
    return OK;
}

METHOD_FN(loop_cycle)
{
    UNUSED(argv);
    if (!args->count) return render_fail(r, "no items for cycling given");
    *out = args->items[loop_index0(self.loop) % args->count];
    return OK;
}

METHOD_FN(loop_changed_method)
{
    UNUSED(argv);
    return loop_changed(r, self.loop, args, out);
}

METHOD_FN(cycler_next)
{
    UNUSED(argv), UNUSED(args), UNUSED(r);
    *out = self.cycler->items.items[self.cycler->pos];
    self.cycler->pos = (self.cycler->pos + 1) % self.cycler->items.count;
    return OK;
}

METHOD_FN(cycler_reset)
{
    UNUSED(argv), UNUSED(args), UNUSED(r);
    self.cycler->pos = 0;
    *out = value_none();
    return OK;
}

METHOD_UNSUPPORTED(as_integer_ratio)
METHOD_UNSUPPORTED(bit_count)
METHOD_UNSUPPORTED(conjugate)
METHOD_UNSUPPORTED(hex)
METHOD_UNSUPPORTED(to_bytes)

const MethodTable template_tuple_methods = { .methods = {
    [M_count] = { "count", list_count, "/!value" }, [M_index] = { "index", list_index, "/!value start end" },
} };

const MethodTable template_range_methods = { .methods = {
    [M_count] = { "count", range_count, "/!value" }, [M_index] = { "index", range_index, "/!value" },
} };

const MethodTable template_list_methods = { .methods = {
    [M_count] = { "count", list_count, "/!value" }, [M_index] = { "index", list_index, "/!value start end" },
    [M_copy] = { "copy", list_copy, "" },
    REFUSED(append), REFUSED(clear), REFUSED(extend), REFUSED(insert), REFUSED(pop), REFUSED(remove), REFUSED(reverse),
    REFUSED(sort),
} };

const MethodTable template_dict_methods = { .methods = {
    [M_get] = { "get", dict_get_method, "/!key default" }, [M_keys] = { "keys", dict_keys, "" },
    [M_values] = { "values", dict_values, "" }, [M_items] = { "items", dict_items, "" }, [M_copy] = { "copy", dict_copy, "" },
    REFUSED(clear), REFUSED(pop), REFUSED(popitem), REFUSED(setdefault), REFUSED(update),
    [M_fromkeys] = { "fromkeys", dict_fromkeys, "/!iterable value" },
} };

const MethodTable template_number_methods = { .methods = {
    [M_is_integer] = { "is_integer", number_is_integer, "" }, [M_bit_length] = { "bit_length", number_bit_length, "" },
    UNSUPPORTED(as_integer_ratio), UNSUPPORTED(bit_count), UNSUPPORTED(conjugate), UNSUPPORTED(hex), UNSUPPORTED(to_bytes),
} };

const MethodTable template_loop_methods = { .methods = {
    [M_cycle] = { "cycle", loop_cycle, "*" }, [M_changed] = { "changed", loop_changed_method, "*" },
} };

const MethodTable template_cycler_methods = { .methods = {
    [M_next] = { "next", cycler_next, "" }, [M_reset] = { "reset", cycler_reset, "" },
} };

const MethodTable *method_table_of(Value object)
{
    switch ((ValueType)object.type) {
    case V_OPEN:
    case V_STRING: return &template_text_methods;
    case V_LIST: return &template_list_methods;
    case V_TUPLE: return &template_tuple_methods;
    case V_RANGE: return &template_range_methods;
    case V_DICT: return &template_dict_methods;
    case V_BOOL:
    case V_INT:
    case V_FLOAT: return &template_number_methods;
    case V_LOOP: return &template_loop_methods;
    case V_CYCLER: return &template_cycler_methods;
    default: return NULL;
    }
}
