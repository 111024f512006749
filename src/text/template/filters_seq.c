/* Filters on sequences and mappings. What Python makes lazily is a LazyList here. */
#include "text/template/filters.h"
#include "text/template/text.h"

#include <math.h>
#include <string.h>

enum { MOST_PARTS = 16, MOST_SORT_KEYS = 8 };

/* "a.b.0", an integer, or nothing: the path that getters follow. */
typedef struct Getter {
    Value parts[MOST_PARTS];
    int   count;
    Value otherwise; /* V_MISSING or None: no default */
    bool  fold_case;
} Getter;

/* The first of the parts of a text that a character splits; the rest stays in *text, whose data is NULL after the last. */
static Str next_part(Str *text, char split)
{
    const char *end = text->len ? memchr(text->data, split, text->len) : NULL;
    Str         part = {text->data, end ? (size_t)(end - text->data) : text->len};
    *text = end ? (Str){end + 1, text->len - part.len - 1} : (Str){0};
    return part;
}

static Value path_part(Str part)
{
    int64_t number = 0;
    bool    is_number = part.len > 0 && part.len < 18;
    for (size_t i = 0; is_number && i < part.len; i++) {
        is_number = part.data[i] >= '0' && part.data[i] <= '9';
        number = number * 10 + (part.data[i] - '0');
    }
    return is_number ? value_int(number) : value_of_str(part);
}

static Getter getter_of(Render *r, Value attribute, Value otherwise, bool fold_case)
{
    Getter getter = {.otherwise = otherwise, .fold_case = fold_case};
    if (!value_is_given(attribute)) return getter;
    if (attribute.type != V_STRING) {
        getter.parts[getter.count++] = attribute;
        return getter;
    }
    for (Str path = value_str(attribute); path.data;) {
        if (getter.count == MOST_PARTS) render_fail(r, "an attribute path has more than %d parts", MOST_PARTS);
        getter.parts[getter.count++] = path_part(next_part(&path, '.'));
    }
    return getter;
}

static Value getter_get(Render *r, const Getter *getter, Value item)
{
    for (int i = 0; i < getter->count; i++) {
        item = value_getitem(r, item, getter->parts[i]);
        if (item.type == V_UNDEFINED && value_is_given(getter->otherwise)) item = getter->otherwise;
    }
    if (!getter->fold_case || item.type != V_STRING) return item;
    return text_case(r, &(Call){.self = item, .mode = CASE_LOWER});
}

/* A list that is made when it is asked for: the caller sets make or next. */
static Value lazy(Render *r, Value source, Args args)
{
    Value v = {.type = V_ITER, .iter = arena_new(&r->arena, LazyList)};
    *v.iter = (LazyList){.source = source, .name = "generator", .args = args};
    return v;
}

/* For filters of two parameters. */
static Value lazy_two(Render *r, const Call *c)
{
    Value *items = arena_array(&r->arena, Value, 2);
    memcpy(items, c->argv, 2 * sizeof *items);
    return lazy(r, c->self, (Args){.items = items, .count = 2});
}

static void lazy_getter(Render *r, LazyList *list, Value attribute, Value otherwise, bool fold_case)
{
    list->getter = arena_new(&r->arena, Getter);
    *list->getter = getter_of(r, attribute, otherwise, fold_case);
}

/* ---- one value of many ---- */

Value filter_length(Render *r, const Call *c)
{
    return value_int(value_length(r, c->self));
}

Value filter_first(Render *r, const Call *c)
{
    Iterator it = iterator_of(r, c->self);
    Value    item;
    return iterator_next(r, &it, &item) ? item : value_hint("No first item, sequence was empty.");
}

Value filter_last(Render *r, const Call *c)
{
    Value self = c->self, none = value_hint("No last item, sequence was empty.");
    if (self.type == V_ITER || self.type == V_LOOP) render_fail(r, "'%s' object is not reversible", value_type_name(self));
    if (value_is(self, TYPES_SLICED)) return value_length(r, self) ? value_getitem(r, self, value_int(-1)) : none;
    List list = value_to_list(r, self);
    return list.count ? list.items[list.count - 1] : none;
}

/* min, max by `mode`. */
Value filter_extreme(Render *r, const Call *c)
{
    Getter getter = getter_of(r, c->argv[1], (Value){0}, !arg_bool(r, c->argv[0], false));
    Value  best = value_hint("No aggregated item, sequence was empty."), best_key = {0}, item;
    for (Iterator it = iterator_of(r, c->self); iterator_next(r, &it, &item);) {
        Value key = getter_get(r, &getter, item);
        bool  is_first = value_is_missing(best_key);
        if (!is_first && value_compare(r, key, best_key, c->mode ? ">" : "<") != (c->mode ? 1 : -1)) continue;
        best = item;
        best_key = key;
    }
    return best;
}

Value filter_sum(Render *r, const Call *c)
{
    Getter getter = getter_of(r, c->argv[0], (Value){0}, false);
    Value  sum = value_or(c->argv[1], value_int(0)), item;
    if (sum.type == V_STRING) render_fail(r, "sum() can't sum strings");
    for (Iterator it = iterator_of(r, c->self); iterator_next(r, &it, &item);)
        sum = value_binary(r, T_ADD, sum, getter_get(r, &getter, item));
    return sum;
}

Value filter_join(Render *r, const Call *c)
{
    Getter   getter = getter_of(r, c->argv[1], (Value){0}, false);
    Value    separator = value_to_text(r, value_or(c->argv[0], value_text("", 0))), item;
    Iterator it = iterator_of(r, c->self);
    size_t   begin = r->out.len;
    for (bool is_first = true; iterator_next(r, &it, &item); is_first = false) {
        item = getter_get(r, &getter, item);
        if (!is_first) print_str(r, separator);
        print_str(r, item);
        text_fits(r);
    }
    return text_take(r, begin);
}

Value filter_default(Render *r, const Call *c)
{
    bool is_wanted = c->self.type == V_UNDEFINED || (arg_bool(r, c->argv[1], false) && !value_truth(r, c->self));
    return is_wanted ? value_or(c->argv[0], value_text("", 0)) : c->self;
}

Value filter_attr(Render *r, const Call *c)
{
    Str   name = value_str(arg_text(r, c->argv[0], "attr: the name"));
    Value v = value_attribute(r, c->self, builtin_find(template_methods, name), name);
    return value_is_missing(v) ? value_undefined(UNDEF_ATTRIBUTE, c->self, name) : v;
}

/* ---- lists ---- */

Value filter_list(Render *r, const Call *c)
{
    return value_list(r, V_LIST, value_to_list(r, c->self));
}

static void make_items(Render *r, LazyList *list, List *out)
{
    if (list->source.type == V_UNDEFINED) return;
    if (list->source.type != V_DICT) render_fail(r, "can only get item pairs from a mapping");
    *out = value_to_list(r, value_view(r, list->source.dict, VIEW_ITEMS));
}

Value filter_items(Render *r, const Call *c)
{
    Value v = lazy(r, c->self, (Args){0});
    v.iter->make = make_items;
    return v;
}

static void make_reversed(Render *r, LazyList *list, List *out)
{
    List all = value_to_list(r, list->source);
    for (uint32_t i = all.count; i > 0; i--) list_add(r, out, all.items[i - 1]);
}

Value filter_reverse(Render *r, const Call *c)
{
    Value self = c->self;
    if (self.type == V_STRING) return value_slice(r, self, (Value[]){{0}, {0}, value_int(-1)});
    if (!value_is(self, TYPES_ITERABLE)) render_fail(r, "reverse: argument must be iterable");
    Value v = lazy(r, self, (Args){0});
    v.iter->make = make_reversed;
    v.iter->name = self.type == V_LIST ? "list_reverseiterator" : "reversed";
    if (self.type != V_ITER) return v;
    lazy_prepare(r, v.iter);
    return value_list(r, V_LIST, v.iter->items);
}

/* Items from `begin` to `end`, filled up to `size` with `fill` when that is given. */
static Value part_of(Render *r, const List *all, int64_t begin, int64_t end, Value fill, int64_t size)
{
    List part = {0};
    for (int64_t i = begin; i < end; i++) list_add(r, &part, all->items[i]);
    while (value_is_given(fill) && part.count < size) list_add(r, &part, fill);
    return value_list(r, V_LIST, part);
}

static void make_batch(Render *r, LazyList *list, List *out)
{
    Value number = list->args.items[0], fill = list->args.items[1];
    bool  is_float = number.type == V_FLOAT; /* only compared with lengths */
    bool  is_whole = is_float && number.number == floor(number.number) && fabs(number.number) < 1e9;
    if (is_float) number = value_int(is_whole ? (int64_t)number.number : -1);
    int64_t size = arg_int(r, number, "batch: the size", 0);
    List    all = value_to_list(r, list->source);
    for (int64_t at = 0, next; at < all.count; at = next) {
        next = size > 0 && size < all.count - at ? at + size : all.count;
        if (size == 0) list_add(r, out, value_list(r, V_LIST, (List){0})); /* as Jinja's comparison has it */
        if (is_float && value_is_given(fill) && next - at < size) render_fail(r, "batch: filling up takes an integer, not a float");
        list_add(r, out, part_of(r, &all, at, next, fill, size));
    }
}

static void make_slice(Render *r, LazyList *list, List *out)
{
    int64_t slices = arg_int(r, list->args.items[0], "slice: the number of slices", 0);
    List    all = value_to_list(r, list->source);
    if (slices == 0) render_fail(r, "integer division or modulo by zero");
    int64_t each = slices > 0 ? all.count / slices : 0, longer = slices > 0 ? all.count % slices : 0;
    for (int64_t i = 0, begin = 0, end; i < slices; i++, begin = end) {
        end = begin + each + (i < longer);
        list_add(r, out, part_of(r, &all, begin, end, i < longer ? value_none() : list->args.items[1], each + 1));
    }
}

Value filter_batch(Render *r, const Call *c)
{
    Value v = lazy_two(r, c);
    v.iter->make = make_batch;
    return v;
}

Value filter_slice(Render *r, const Call *c)
{
    Value v = lazy_two(r, c);
    v.iter->make = make_slice;
    return v;
}

/* ---- sorting: a merge sort, stable as Python's, with a comparison that can fail ---- */

typedef struct Sorter {
    Render      *r;
    const Value *keys;
    uint32_t    *order, *scratch;
    bool         reverse; /* keeps the order of equals too */
} Sorter;

static void merge_sort(Sorter *s, uint32_t begin, uint32_t end)
{
    if (end - begin < 2) return;
    uint32_t middle = begin + (end - begin) / 2, a = begin, b = middle, n = begin;
    merge_sort(s, begin, middle);
    merge_sort(s, middle, end);
    while (a < middle || b < end) {
        bool take_b = a == middle;
        render_tick(s->r, 1);
        if (a < middle && b < end) take_b = value_compare(s->r, s->keys[s->order[b]], s->keys[s->order[a]], "<") == (s->reverse ? 1 : -1);
        s->scratch[n++] = s->order[take_b ? b++ : a++];
    }
    memcpy(s->order + begin, s->scratch + begin, (end - begin) * sizeof *s->order);
}

void sort_values(Render *r, Value *items, const Value *keys, uint32_t count, bool reverse)
{
    Sorter s = {.r = r, .keys = keys, .reverse = reverse};
    Value *unsorted = arena_array(&r->arena, Value, (size_t)count + 1);
    s.order = arena_array(&r->arena, uint32_t, (size_t)count * 2 + 1);
    s.scratch = s.order + count;
    for (uint32_t i = 0; i < count; i++) {
        s.order[i] = i;
        unsorted[i] = items[i];
    }
    merge_sort(&s, 0, count);
    for (uint32_t i = 0; i < count; i++) items[i] = unsorted[s.order[i]];
}

static Value *keys_of(Render *r, const List *list, const Getter *getter)
{
    Value *keys = arena_array(&r->arena, Value, list->count);
    for (uint32_t i = 0; i < list->count; i++) keys[i] = getter_get(r, getter, list->items[i]);
    return keys;
}

Value filter_sort(Render *r, const Call *c)
{
    bool     reverse = arg_bool(r, c->argv[0], false), fold_case = !arg_bool(r, c->argv[1], false);
    List     list = value_to_list(r, c->self);
    Getter   getters[MOST_SORT_KEYS];
    uint32_t count = 0;
    bool     is_text = c->argv[2].type == V_STRING;
    for (Str names = is_text ? value_str(c->argv[2]) : (Str){"", 0}; names.data;) {
        if (count == MOST_SORT_KEYS) render_fail(r, "sort: more than %d attributes are not supported", MOST_SORT_KEYS);
        Str name = next_part(&names, ',');
        getters[count++] = getter_of(r, is_text ? value_of_str(name) : c->argv[2], (Value){0}, fold_case);
    }
    Value *keys = arena_array(&r->arena, Value, list.count); /* lists, so that equal ones need no order */
    for (uint32_t i = 0; i < list.count; i++) {
        List key = {0};
        for (uint32_t g = 0; g < count; g++) list_add(r, &key, getter_get(r, &getters[g], list.items[i]));
        keys[i] = value_list(r, V_LIST, key);
    }
    sort_values(r, list.items, keys, list.count, reverse);
    return value_list(r, V_LIST, list);
}

Value filter_dictsort(Render *r, const Call *c)
{
    bool  fold_case = !arg_bool(r, c->argv[0], false), reverse = arg_bool(r, c->argv[2], false);
    Value by = value_or(c->argv[1], value_text("key", 3));
    bool  by_value = by.type == V_STRING && str_equal(value_str(by), "value");
    if (!by_value && !(by.type == V_STRING && str_equal(value_str(by), "key"))) render_fail(r, "dictsort: by must be \"key\" or \"value\"");
    if (c->self.type == V_UNDEFINED) undefined_fail(r, c->self);
    if (c->self.type != V_DICT) render_fail(r, "dictsort: expected a dict, got %s", value_type_name(c->self));
    List   list = value_to_list(r, value_view(r, c->self.dict, VIEW_ITEMS));
    Getter getter = getter_of(r, value_int(by_value), (Value){0}, fold_case);
    sort_values(r, list.items, keys_of(r, &list, &getter), list.count, reverse);
    return value_list(r, V_LIST, list);
}

Value filter_groupby(Render *r, const Call *c)
{
    Getter getter = getter_of(r, c->argv[0], c->argv[1], !arg_bool(r, c->argv[2], false)), plain = getter;
    List   list = value_to_list(r, c->self), groups = {0};
    plain.fold_case = false;
    sort_values(r, list.items, keys_of(r, &list, &getter), list.count, false);
    const Value *keys = keys_of(r, &list, &getter);
    for (uint32_t begin = 0, end; begin < list.count; begin = end) {
        for (end = begin + 1; end < list.count && value_equal(r, keys[begin], keys[end]);) end++;
        Value members = value_list(r, V_LIST, (List){.items = list.items + begin, .count = end - begin});
        Value group = value_pair(r, getter_get(r, &plain, list.items[begin]), members);
        group.flags = VALUE_GROUP;
        list_add(r, &groups, group);
    }
    return value_list(r, V_LIST, groups);
}

static bool next_unique(Render *r, LazyList *list, Value *out)
{
    if (!list->is_ready) {
        list->is_ready = true;
        list->seen = arena_new(&r->arena, Dict);
        lazy_getter(r, list, list->args.items[1], (Value){0}, !arg_bool(r, list->args.items[0], false));
        list->it = iterator_of(r, list->source);
    }
    while (iterator_next(r, &list->it, out)) {
        uint32_t before = list->seen->count;
        dict_set(r, list->seen, getter_get(r, list->getter, *out), value_none());
        if (list->seen->count > before) return true;
    }
    return false;
}

Value filter_unique(Render *r, const Call *c)
{
    Value v = lazy_two(r, c);
    v.iter->next = next_unique;
    return v;
}

/* ---- map, select, reject ---- */

/* The filter or test that args[at] names, for the arguments behind. */
static void lazy_builtin(Render *r, LazyList *list, uint32_t at, const Builtin *table, const char *what)
{
    Value name = arg_text(r, list->args.items[at], "a filter's or test's name");
    list->builtin = builtin_find(table, value_str(name));
    if (!list->builtin) render_fail(r, "no %s named '%.*s'", what, shown(name.len), name.text);
    list->builtin_args = list->args;
    list->builtin_args.items += at + 1;
    list->builtin_args.count -= at + 1;
}

/* At the first read; false: the source is false, and nothing else is looked at. */
static bool lazy_begin(Render *r, LazyList *list)
{
    bool truth = value_truth(r, list->source);
    list->is_ready = true;
    list->it = truth ? iterator_of(r, list->source) : (Iterator){.source = {.type = V_UNDEFINED}};
    return truth;
}

static void map_attribute(Render *r, LazyList *list)
{
    Value attribute = {0}, otherwise = {0};
    for (uint32_t i = 0; i < list->args.num_keywords; i++) {
        const Keyword *keyword = &list->args.keywords[i];
        bool           is_attribute = str_equal(keyword->name, "attribute");
        if (!is_attribute && !str_equal(keyword->name, "default"))
            render_fail(r, "map: unexpected keyword argument '%.*s'", shown(keyword->name.len), keyword->name.data);
        *(is_attribute ? &attribute : &otherwise) = keyword->value;
    }
    if (value_is_missing(attribute)) render_fail(r, "map requires a filter argument");
    lazy_getter(r, list, attribute, otherwise, false);
}

static bool next_mapped(Render *r, LazyList *list, Value *out)
{
    bool begins = !list->is_ready && lazy_begin(r, list);
    if (begins && list->args.count) lazy_builtin(r, list, 0, template_filters, "filter");
    if (begins && !list->args.count) map_attribute(r, list);
    if (!iterator_next(r, &list->it, out)) return false;
    *out = list->builtin ? builtin_call(r, list->builtin, *out, &list->builtin_args) : getter_get(r, list->getter, *out);
    return true;
}

Value filter_map(Render *r, const Call *c)
{
    Value v = lazy(r, c->self, *c->args);
    v.iter->next = next_mapped;
    return v;
}

static void begin_select(Render *r, LazyList *list)
{
    uint32_t off = list->by_attribute;
    if (!lazy_begin(r, list)) return;
    if (list->by_attribute && !list->args.count) render_fail(r, "missing parameter for the attribute's name");
    lazy_getter(r, list, list->by_attribute ? list->args.items[0] : value_none(), (Value){0}, false);
    if (list->args.count > off) lazy_builtin(r, list, off, template_tests, "test");
}

static bool next_selected(Render *r, LazyList *list, Value *out)
{
    if (!list->is_ready) begin_select(r, list);
    while (iterator_next(r, &list->it, out)) {
        Value item = getter_get(r, list->getter, *out);
        if (list->builtin) item = builtin_call(r, list->builtin, item, &list->builtin_args);
        if (value_truth(r, item) != list->negate) return true;
    }
    return false;
}

Value filter_select(Render *r, const Call *c)
{
    Value v = lazy(r, c->self, *c->args);
    v.iter->next = next_selected;
    v.iter->negate = c->mode & SELECT_NOT;
    v.iter->by_attribute = c->mode & SELECT_ATTRIBUTE;
    return v;
}
