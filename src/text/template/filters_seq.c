/* Filters on sequences and mappings. What Python makes lazily is a LazyList here. */
#include "text/template/filters.h"

#include "text/template/methods.h"
#include "text/template/repr.h"
#include "text/template/text.h"

#include <math.h>
#include <string.h>

/* "a.b.0", an integer, or nothing: the path that getters follow. */
typedef struct Getter {
    Value parts[16];
    int   count;
    Value otherwise; /* V_MISSING or None: no default */
    bool  fold_case;
} Getter;

static Status getter_add(Render *r, Getter *getter, Str part)
{
    bool digits = part.len > 0 && part.len < 18;
    if (getter->count == 16) return render_fail(r, "an attribute path has more than 16 parts");
    int64_t number = 0;
    for (size_t i = 0; digits && i < part.len; i++) {
        digits = part.data[i] >= '0' && part.data[i] <= '9';
        number = number * 10 + (part.data[i] - '0');
    }
    getter->parts[getter->count++] = digits ? value_int(number) : value_text(part.data, part.len);
    return OK;
}

static Status getter_init(Render *r, Getter *getter, Value attribute, Value otherwise, bool fold_case)
{
    *getter = (Getter){ .otherwise = otherwise, .fold_case = fold_case };
    if (value_is_missing(attribute) || attribute.type == V_NONE) return OK;
    if (attribute.type != V_STRING) {
        getter->parts[getter->count++] = attribute;
        return OK;
    }
    size_t begin = 0;
    for (size_t i = 0; i <= attribute.len; i++) {
        if (i < attribute.len && attribute.text[i] != '.') continue;
        TRY(getter_add(r, getter, (Str){ attribute.text + begin, i - begin }));
        begin = i + 1;
    }
    return OK;
}

static Status getter_get(Render *r, const Getter *getter, Value item, Value *out)
{
    for (int i = 0; i < getter->count; i++) {
        TRY(value_getitem(r, item, getter->parts[i], &item));
        if (item.type == V_UNDEFINED && !value_is_missing(getter->otherwise) && getter->otherwise.type != V_NONE)
            item = getter->otherwise;
    }
    *out = item;
    if (!getter->fold_case || item.type != V_STRING) return OK;
    static const Args none = { 0 };
    return builtin_call(r, &template_text_methods.methods[M_lower], item, &none, out);
}

/* A list that is made when it is asked for: the caller sets make or next. */
static LazyList *lazy(Render *r, Value source, Args args, Value *out)
{
    LazyList *list = arena_new(&r->arena, LazyList);
    list->source = source;
    list->name = "generator";
    list->args = args;
    *out = (Value){ .type = V_ITER, .iter = list };
    return list;
}

static Status lazy_getter(Render *r, LazyList *list, Value attribute, Value otherwise, bool fold_case)
{
    list->getter = arena_new(&r->arena, Getter);
    return getter_init(r, list->getter, attribute, otherwise, fold_case);
}

static Status take_list(LazyList *lazy_list, List list)
{
    lazy_list->items = list.items;
    lazy_list->count = list.count;
    return OK;
}

/* ---- one value of many ---- */

FILTER_FN(length)
{
    int64_t length;
    UNUSED(argv), UNUSED(args);
    TRY(value_length(r, self, &length));
    *out = value_int(length);
    return OK;
}

FILTER_FN(first)
{
    Iterator it;
    bool     done;
    UNUSED(argv), UNUSED(args);
    TRY(iterator_init(r, &it, self));
    TRY(iterator_next(r, &it, out, &done));
    if (done) *out = value_hint("No first item, sequence was empty.");
    return OK;
}

FILTER_FN(last)
{
    UNUSED(argv), UNUSED(args);
    List list;
    if (self.type == V_ITER || self.type == V_LOOP) return render_fail(r, "'%s' object is not reversible", value_type_name(self));
    *out = value_hint("No last item, sequence was empty.");
    if (self.type == V_STRING || self.type == V_LIST || self.type == V_TUPLE || self.type == V_RANGE) {
        int64_t length;
        TRY(value_length(r, self, &length));
        return length ? value_getitem(r, self, value_int(-1), out) : OK;
    }
    TRY(value_to_list(r, self, &list));
    if (list.count) *out = list.items[list.count - 1];
    return OK;
}

static Status extreme(Render *r, Value self, const Value *argv, bool want_max, Value *out)
{
    Getter   getter;
    Iterator it;
    Value    best_key = { 0 };
    bool     case_sensitive;
    TRY(arg_bool(r, argv[0], false, &case_sensitive));
    TRY(getter_init(r, &getter, argv[1], (Value){ 0 }, !case_sensitive));
    TRY(iterator_init(r, &it, self));
    *out = value_hint("No aggregated item, sequence was empty.");
    for (bool first = true;; first = false) {
        Value item, key;
        bool  done;
        int   order = 0;
        TRY(iterator_next(r, &it, &item, &done));
        if (done) return OK;
        TRY(getter_get(r, &getter, item, &key));
        if (!first) TRY(value_compare(r, key, best_key, want_max ? ">" : "<", &order));
        if (!first && order != (want_max ? 1 : -1)) continue;
        *out = item;
        best_key = key;
    }
}
FILTER_FN(max) { UNUSED(args); return extreme(r, self, argv, true, out); }
FILTER_FN(min) { UNUSED(args); return extreme(r, self, argv, false, out); }

FILTER_FN(sum)
{
    Getter   getter;
    Iterator it;
    UNUSED(args);
    *out = arg_or(argv[1], value_int(0));
    if (out->type == V_STRING) return render_fail(r, "sum() can't sum strings");
    TRY(getter_init(r, &getter, argv[0], (Value){ 0 }, false));
    TRY(iterator_init(r, &it, self));
    for (;;) {
        Value item;
        bool  done;
        TRY(iterator_next(r, &it, &item, &done));
        if (done) return OK;
        TRY(getter_get(r, &getter, item, &item));
        TRY(value_binary(r, T_ADD, *out, item, out));
    }
}

FILTER_FN(join)
{
    Getter   getter;
    Iterator it;
    StrBuf   text = { 0 };
    Status   status;
    Value    item, separator = arg_or(argv[0], value_text("", 0));
    bool     done;
    UNUSED(args);
    TRY(getter_init(r, &getter, argv[1], (Value){ 0 }, false));
    TRY(value_to_text(r, separator, &separator));
    TRY(iterator_init(r, &it, self));
    for (bool first = true;; first = false) {
        status = iterator_next(r, &it, &item, &done);
        if (status != OK || done) break;
        if (!first) strbuf_append(&text, separator.text, separator.len);
        status = getter_get(r, &getter, item, &item);
        if (status == OK) status = value_append_str(r, &text, item);
        if (status == OK && text.len > RENDER_MAX_TEXT_BYTES) status = text_check(r, text.len);
        if (status != OK) break;
    }
    if (status == OK) return text_finish(r, &text, out);
    strbuf_deinit(&text);
    return status;
}

FILTER_FN(default)
{
    bool boolean, truth = true;
    UNUSED(args);
    TRY(arg_bool(r, argv[1], false, &boolean));
    if (boolean) TRY(value_truth(r, self, &truth));
    *out = self.type == V_UNDEFINED || !truth ? arg_or(argv[0], value_text("", 0)) : self;
    return OK;
}

FILTER_FN(attr)
{
    UNUSED(args);
    if (argv[0].type != V_STRING) return render_fail(r, "attr: the name must be a text");
    uint32_t id = 0;
    while (id < METHOD_COUNT && !str_equal(value_str(argv[0]), template_method_names[id])) id++;
    TRY(value_getattr_only(r, self, id, value_str(argv[0]), out));
    if (value_is_missing(*out)) *out = value_undefined(UNDEF_ATTRIBUTE, (ValueType)self.type, argv[0].text, argv[0].len);
    return OK;
}

/* ---- lists ---- */

FILTER_FN(list)
{
    UNUSED(argv), UNUSED(args);
    List list;
    TRY(value_to_list(r, self, &list));
    *out = value_list(r, V_LIST, list.items, list.count);
    return OK;
}

static Status make_items(Render *r, LazyList *list)
{
    List pairs;
    if (list->source.type == V_UNDEFINED) return OK;
    if (list->source.type != V_DICT) return render_fail(r, "can only get item pairs from a mapping");
    View view = { list->source.dict, VIEW_ITEMS };
    TRY(value_to_list(r, (Value){ .type = V_VIEW, .view = &view }, &pairs));
    return take_list(list, pairs);
}
FILTER_FN(items)
{
    UNUSED(argv), UNUSED(args);
    lazy(r, self, (Args){ 0 }, out)->make = make_items;
    return OK;
}

static Status make_reversed(Render *r, LazyList *list)
{
    List all;
    TRY(value_to_list(r, list->source, &all));
    for (uint32_t i = 0; i < all.count / 2; i++) {
        Value swap = all.items[i];
        all.items[i] = all.items[all.count - 1 - i];
        all.items[all.count - 1 - i] = swap;
    }
    return take_list(list, all);
}

FILTER_FN(reverse)
{
    UNUSED(argv), UNUSED(args);
    if (self.type == V_STRING) {
        TRY(value_slice(r, self, value_none(), value_none(), value_int(-1), out));
        return OK;
    }
    if (!value_is_iterable(self)) return render_fail(r, "reverse: argument must be iterable");
    LazyList *list = lazy(r, self, (Args){ 0 }, out);
    list->make = make_reversed;
    list->name = self.type == V_LIST ? "list_reverseiterator" : "reversed";
    if (self.type != V_ITER) return OK;
    TRY(lazy_prepare(r, list));
    *out = value_list(r, V_LIST, list->items, list->count);
    return OK;
}

static Status append(Render *r, List *list, uint32_t *capacity, Value item)
{
    if (list->count == *capacity) {
        *capacity = *capacity ? *capacity * 2 : 8;
        Value *items = arena_array(&r->arena, Value, *capacity);
        if (list->count) memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
    }
    list->items[list->count++] = item;
    return render_tick(r, 1);
}

static Status make_batch(Render *r, LazyList *list)
{
    int64_t  size;
    List     all, out = { 0 };
    uint32_t capacity = 0;
    Value    number = list->args.items[0];
    bool     is_float = number.type == V_FLOAT; /* only compared with lengths */
    if (is_float) {
        bool whole = number.number == floor(number.number) && fabs(number.number) < 1e9;
        number = value_int(whole ? (int64_t)number.number : -1);
    }
    TRY(arg_int(r, number, "batch: the size", 0, &size));
    TRY(value_to_list(r, list->source, &all));
    for (uint32_t at = 0, next; at < all.count; at = next) {
        next = size > 0 && size < all.count - at ? at + (uint32_t)size : all.count;
        if (size <= 0) next = all.count;
        if (size == 0) TRY(append(r, &out, &capacity, value_list(r, V_LIST, NULL, 0))); /* as Jinja's comparison has it */
        List part = { all.items + at, next - at };
        Value fill = list->args.items[1];
        if (!value_is_missing(fill) && fill.type != V_NONE && part.count < size) {
            if (is_float) return render_fail(r, "batch: filling up takes an integer, not a float");
            uint32_t part_capacity = 0;
            List     full = { 0 };
            for (int64_t i = 0; i < size; i++) TRY(append(r, &full, &part_capacity, i < part.count ? part.items[i] : fill));
            part = full;
        }
        TRY(append(r, &out, &capacity, value_list(r, V_LIST, part.items, part.count)));
    }
    return take_list(list, out);
}

static Status make_slice(Render *r, LazyList *list)
{
    int64_t  slices, offset = 0;
    List     all, out = { 0 };
    uint32_t capacity = 0;
    Value    fill = list->args.items[1];
    TRY(arg_int(r, list->args.items[0], "slice: the number of slices", 0, &slices));
    TRY(value_to_list(r, list->source, &all));
    if (slices == 0) return render_fail(r, "integer division or modulo by zero");
    int64_t each = slices > 0 ? all.count / slices : 0, with_extra = slices > 0 ? all.count % slices : 0;
    for (int64_t i = 0; i < slices; i++) {
        int64_t start = offset + i * each;
        if (i < with_extra) offset++;
        int64_t  end = offset + (i + 1) * each;
        uint32_t part_capacity = 0;
        List     part = { 0 };
        for (int64_t j = start; j < end; j++) TRY(append(r, &part, &part_capacity, all.items[j]));
        if (!value_is_missing(fill) && fill.type != V_NONE && i >= with_extra) TRY(append(r, &part, &part_capacity, fill));
        TRY(append(r, &out, &capacity, value_list(r, V_LIST, part.items, part.count)));
    }
    return take_list(list, out);
}

/* For filters of two parameters. */
static LazyList *lazy_two(Render *r, Value self, const Value *argv, Value *out)
{
    Value *items = arena_array(&r->arena, Value, 2);
    items[0] = argv[0];
    items[1] = argv[1];
    return lazy(r, self, (Args){ items, 2, NULL, 0 }, out);
}

FILTER_FN(batch)
{
    UNUSED(args);
    lazy_two(r, self, argv, out)->make = make_batch;
    return OK;
}

FILTER_FN(slice)
{
    UNUSED(args);
    lazy_two(r, self, argv, out)->make = make_slice;
    return OK;
}

/* ---- sorting ---- */

/* Keys of a sort: lists, so that equal ones need no order. */
static Status sort_keys(Render *r, const List *list, Value attribute, bool fold_case, Value *keys)
{
    Getter getters[8];
    uint32_t count = 0;
    size_t begin = 0;
    if (attribute.type == V_STRING) {
        for (size_t i = 0; i <= attribute.len; i++) {
            if (i < attribute.len && attribute.text[i] != ',') continue;
            if (count == 8) return render_fail(r, "sort: more than 8 attributes are not supported");
            TRY(getter_init(r, &getters[count++], value_text(attribute.text + begin, i - begin), (Value){ 0 }, fold_case));
            begin = i + 1;
        }
    } else {
        TRY(getter_init(r, &getters[count++], attribute, (Value){ 0 }, fold_case));
    }
    for (uint32_t i = 0; i < list->count; i++) {
        Value *items = arena_array(&r->arena, Value, count);
        for (uint32_t g = 0; g < count; g++) TRY(getter_get(r, &getters[g], list->items[i], &items[g]));
        keys[i] = value_list(r, V_LIST, items, count);
    }
    return OK;
}

FILTER_FN(sort)
{
    List list;
    bool reverse, case_sensitive;
    UNUSED(args);
    TRY(arg_bool(r, argv[0], false, &reverse));
    TRY(arg_bool(r, argv[1], false, &case_sensitive));
    TRY(value_to_list(r, self, &list));
    Value *keys = arena_array(&r->arena, Value, list.count);
    TRY(sort_keys(r, &list, argv[2], !case_sensitive, keys));
    TRY(sort_values(r, list.items, keys, list.count, reverse));
    *out = value_list(r, V_LIST, list.items, list.count);
    return OK;
}

FILTER_FN(dictsort)
{
    bool   case_sensitive, reverse;
    Value  by = arg_or(argv[1], value_text("key", 3));
    List   list;
    Getter getter;
    UNUSED(args);
    TRY(arg_bool(r, argv[0], false, &case_sensitive));
    TRY(arg_bool(r, argv[2], false, &reverse));
    bool by_value = by.type == V_STRING && str_equal(value_str(by), "value");
    if (!by_value && !(by.type == V_STRING && str_equal(value_str(by), "key")))
        return render_fail(r, "dictsort: by must be \"key\" or \"value\"");
    if (self.type == V_UNDEFINED) return undefined_fail(r, self);
    if (self.type != V_DICT) return render_fail(r, "dictsort: expected a dict, got %s", value_type_name(self));
    View view = { self.dict, VIEW_ITEMS };
    TRY(value_to_list(r, (Value){ .type = V_VIEW, .view = &view }, &list));
    TRY(getter_init(r, &getter, value_int(by_value), (Value){ 0 }, !case_sensitive));
    Value *keys = arena_array(&r->arena, Value, list.count);
    for (uint32_t i = 0; i < list.count; i++) TRY(getter_get(r, &getter, list.items[i], &keys[i]));
    TRY(sort_values(r, list.items, keys, list.count, reverse));
    *out = value_list(r, V_LIST, list.items, list.count);
    return OK;
}

FILTER_FN(groupby)
{
    bool     case_sensitive;
    List     list, groups = { 0 };
    Getter   getter, plain;
    uint32_t capacity = 0;
    UNUSED(args);
    TRY(arg_bool(r, argv[2], false, &case_sensitive));
    TRY(getter_init(r, &getter, argv[0], argv[1], !case_sensitive));
    TRY(getter_init(r, &plain, argv[0], argv[1], false));
    TRY(value_to_list(r, self, &list));
    Value *keys = arena_array(&r->arena, Value, list.count);
    for (uint32_t i = 0; i < list.count; i++) TRY(getter_get(r, &getter, list.items[i], &keys[i]));
    TRY(sort_values(r, list.items, keys, list.count, false));
    for (uint32_t begin = 0, end; begin < list.count; begin = end) {
        bool  same = true;
        Value key;
        for (end = begin + 1; end < list.count; end++) {
            TRY(value_equal(r, keys[begin], keys[end], &same));
            if (!same) break;
        }
        TRY(getter_get(r, &plain, list.items[begin], &key));
        Value group = value_pair(r, key, value_list(r, V_LIST, list.items + begin, end - begin));
        group.flags = VALUE_GROUP;
        TRY(append(r, &groups, &capacity, group));
    }
    *out = value_list(r, V_LIST, groups.items, groups.count);
    return OK;
}

static Status next_unique(Render *r, LazyList *list, Value *out, bool *out_done)
{
    bool case_sensitive;
    if (!list->ready) {
        list->ready = true;
        list->seen = arena_new(&r->arena, Dict);
        TRY(arg_bool(r, list->args.items[0], false, &case_sensitive));
        TRY(lazy_getter(r, list, list->args.items[1], (Value){ 0 }, !case_sensitive));
        TRY(iterator_init(r, &list->it, list->source));
    }
    for (;;) {
        Value    key;
        uint32_t before = list->seen->count;
        TRY(iterator_next(r, &list->it, out, out_done));
        if (*out_done) return OK;
        TRY(getter_get(r, list->getter, *out, &key));
        TRY(dict_set(r, list->seen, key, value_none()));
        if (list->seen->count > before) return OK;
    }
}

FILTER_FN(unique)
{
    UNUSED(args);
    lazy_two(r, self, argv, out)->next = next_unique;
    return OK;
}

/* ---- map, select, reject ---- */

static Status map_attribute(Render *r, LazyList *list)
{
    Value attribute = { 0 }, otherwise = { 0 };
    for (uint32_t i = 0; i < list->args.num_keywords; i++) {
        const Keyword *keyword = &list->args.keywords[i];
        if (str_equal(keyword->name, "attribute")) {
            attribute = keyword->value;
        } else if (str_equal(keyword->name, "default")) {
            otherwise = keyword->value;
        } else {
            return render_fail(r, "map: unexpected keyword argument '%.*s'", (int)(keyword->name.len & 0xFF), keyword->name.data);
        }
    }
    if (value_is_missing(attribute)) return render_fail(r, "map requires a filter argument");
    return lazy_getter(r, list, attribute, otherwise, false);
}

/* The filter or test that args[at] names, for the arguments behind. */
static Status lazy_builtin(Render *r, LazyList *list, uint32_t at, const Builtin *table, uint32_t count, const char *what)
{
    Value name = list->args.items[at];
    if (name.type != V_STRING) return render_fail(r, "the %s's name must be a text", what);
    uint32_t index = builtin_find(table, count, value_str(name));
    if (index == UINT32_MAX) return render_fail(r, "no %s named '%.*s'", what, (int)(name.len & 0xFF), name.text);
    list->builtin = &table[index];
    list->builtin_args = list->args;
    list->builtin_args.items += at + 1;
    list->builtin_args.count -= at + 1;
    return OK;
}

/* The iterator over the source; over nothing, and nothing else is looked at, when that is false. */
static Status lazy_begin(Render *r, LazyList *list, bool *out_empty)
{
    bool truth;
    list->ready = true;
    TRY(value_truth(r, list->source, &truth));
    *out_empty = !truth;
    if (truth) return iterator_init(r, &list->it, list->source);
    list->it = (Iterator){ .source = { .type = V_UNDEFINED } };
    return OK;
}

static Status next_mapped(Render *r, LazyList *list, Value *out, bool *out_done)
{
    bool empty = true;
    if (!list->ready) TRY(lazy_begin(r, list, &empty));
    if (!empty && list->args.count) TRY(lazy_builtin(r, list, 0, template_filters, template_num_filters, "filter"));
    if (!empty && !list->args.count) TRY(map_attribute(r, list));
    TRY(iterator_next(r, &list->it, out, out_done));
    if (*out_done) return OK;
    if (!list->builtin) return getter_get(r, list->getter, *out, out);
    return builtin_call(r, list->builtin, *out, &list->builtin_args, out);
}

FILTER_FN(map)
{
    UNUSED(argv);
    lazy(r, self, *args, out)->next = next_mapped;
    return OK;
}

static Status begin_select(Render *r, LazyList *list)
{
    bool     empty;
    uint32_t off = list->by_attribute;
    TRY(lazy_begin(r, list, &empty));
    if (empty) return OK;
    if (list->by_attribute && !list->args.count) return render_fail(r, "missing parameter for the attribute's name");
    TRY(lazy_getter(r, list, list->by_attribute ? list->args.items[0] : value_none(), (Value){ 0 }, false));
    if (list->args.count <= off) return OK;
    return lazy_builtin(r, list, off, template_tests, template_num_tests, "test");
}

static Status next_selected(Render *r, LazyList *list, Value *out, bool *out_done)
{
    if (!list->ready) TRY(begin_select(r, list));
    for (bool truth;;) {
        Value item;
        TRY(iterator_next(r, &list->it, out, out_done));
        if (*out_done) return OK;
        TRY(getter_get(r, list->getter, *out, &item));
        if (list->builtin) TRY(builtin_call(r, list->builtin, item, &list->builtin_args, &item));
        TRY(value_truth(r, item, &truth));
        if (truth != list->negate) return OK;
    }
}

static Status select_items(Render *r, Value self, const Args *args, bool negate, bool by_attribute, Value *out)
{
    LazyList *list = lazy(r, self, *args, out);
    list->next = next_selected;
    list->negate = negate;
    list->by_attribute = by_attribute;
    return OK;
}
FILTER_FN(select) { UNUSED(argv); return select_items(r, self, args, false, false, out); }
FILTER_FN(reject) { UNUSED(argv); return select_items(r, self, args, true, false, out); }
FILTER_FN(selectattr) { UNUSED(argv); return select_items(r, self, args, false, true, out); }
FILTER_FN(rejectattr) { UNUSED(argv); return select_items(r, self, args, true, true, out); }
