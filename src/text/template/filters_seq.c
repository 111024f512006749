/* Filters on sequences and mappings. Where Python returns a generator, a LazyList is returned. */
#include "text/template/render.h"
#include "text/template/text.h"

#include <math.h>
#include <string.h>

enum { MOST_PARTS = 16 };

/* The path to an attribute: "a.b.0", an integer, or nothing. */
typedef struct Getter {
    Value parts[MOST_PARTS];
    int   count;
    Value otherwise; /* default for undefined attributes; V_MISSING or None: no default */
    bool  fold_case;
} Getter;

static Getter getter_of(Render *r, Value attribute, Value otherwise, bool fold_case)
{
    Getter getter = {.otherwise = otherwise, .fold_case = fold_case};
    if (!value_is_given(attribute)) return getter;
    if (attribute.type != V_STRING) {
        getter.parts[getter.count++] = attribute;
        return getter;
    }
    render_tick(r, attribute.len >> 6);
    for (size_t begin = 0, end; begin <= attribute.len; begin = end + 1) {
        for (end = begin; end < attribute.len && attribute.text[end] != '.';) end++;
        if (getter.count == MOST_PARTS) render_fail(r, "an attribute path has more than %d parts", MOST_PARTS);
        Str     part = {attribute.text + begin, end - begin};
        int64_t index = number_of(part);
        getter.parts[getter.count++] = index < 0 ? value_of_str(part) : value_int(index);
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

/* Makes a generator that keeps the arguments of the call. */
static Value lazy(Render *r, const Call *c, bool (*next)(Render *r, LazyList *list, Value *out))
{
    Value v = {.type = V_ITER, .iter = arena_new(&r->arena, LazyList)};
    *v.iter = (LazyList){.source = c->self, .name = "generator", .args = *c->args, .mode = c->mode, .next = next};
    return v;
}

/* ---- filters that make one value of a sequence ---- */

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
    if (self.type == V_ITER) render_fail(r, "'%s' object is not reversible", value_type_name(self));
    if (value_is(self, TYPES_INDEXED)) return value_length(r, self) ? value_getitem(r, self, value_int(-1)) : none;
    List list = value_to_list(r, self);
    return list.count ? list.items[list.count - 1] : none;
}

/* min and max, selected by `mode`. */
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

/* ---- filters that make lists ---- */

Value filter_list(Render *r, const Call *c)
{
    return value_list(r, V_LIST, value_to_list(r, c->self));
}

static bool next_item(Render *r, LazyList *list, Value *out)
{
    Value source = list->source;
    if (!list->is_ready && source.type != V_UNDEFINED && source.type != V_DICT) render_fail(r, "can only get item pairs from a mapping");
    if (!list->is_ready) list->it = iterator_of(r, source.type == V_DICT ? value_view(r, source.dict, VIEW_ITEMS) : source);
    list->is_ready = true;
    return iterator_next(r, &list->it, out);
}

Value filter_items(Render *r, const Call *c)
{
    return lazy(r, c, next_item);
}

Value filter_reverse(Render *r, const Call *c)
{
    Value self = c->self;
    if (self.type == V_STRING) return value_slice(r, self, (Value[]){{0}, {0}, value_int(-1)});
    if (!value_is(self, TYPES_ITERABLE)) render_fail(r, "reverse: argument must be iterable");
    List list = value_to_list(r, self);
    list_reverse(list);
    Value reversed = value_list(r, V_LIST, list), v = lazy(r, c, NULL);
    v.iter->it = iterator_of(r, reversed);
    v.iter->name = self.type == V_LIST ? "list_reverseiterator" : "reversed";
    return self.type == V_ITER ? reversed : v;
}

/* ---- sorting ---- */

/* Insertion sort with binary search: it is stable, like Python's sort, and a comparison may fail at any time. */
void sort_values(Render *r, Value *items, Value *keys, uint32_t count, bool reverse)
{
    for (uint32_t i = 1; i < count; i++) {
        Value    item = items[i], key = keys[i];
        uint32_t low = 0, high = i;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (value_compare(r, key, keys[middle], "<") == (reverse ? 1 : -1))
                high = middle;
            else
                low = middle + 1;
        }
        memmove(items + low + 1, items + low, (i - low) * sizeof *items);
        memmove(keys + low + 1, keys + low, (i - low) * sizeof *keys);
        render_tick(r, 1 + ((i - low) >> 5));
        items[low] = item;
        keys[low] = key;
    }
}

static Value *keys_of(Render *r, const List *list, const Getter *getter)
{
    Value *keys = arena_array(&r->arena, Value, list->count);
    for (uint32_t i = 0; i < list->count; i++) keys[i] = getter_get(r, getter, list->items[i]);
    return keys;
}

Value filter_sort(Render *r, const Call *c)
{
    bool   reverse = arg_bool(r, c->argv[0], false), fold_case = !arg_bool(r, c->argv[1], false);
    List   list = value_to_list(r, c->self);
    Getter getter = getter_of(r, c->argv[2], (Value){0}, fold_case);
    if (c->argv[2].type == V_STRING && memchr(c->argv[2].text, ',', c->argv[2].len))
        render_fail(r, "sort: more than one attribute is not supported");
    Value *keys = keys_of(r, &list, &getter);
    /* Keys are wrapped in pairs: pairs are compared for equality first, so that equal keys needn't be orderable. */
    for (uint32_t i = 0; i < list.count; i++) keys[i] = value_pair(r, keys[i], value_none());
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

static bool next_unique(Render *r, LazyList *list, Value *out)
{
    if (!list->is_ready) list->it = iterator_of(r, list->source);
    list->is_ready = true;
    while (iterator_next(r, &list->it, out)) {
        uint32_t num_seen = list->seen.count;
        dict_set(r, &list->seen, getter_get(r, list->getter, *out), value_none());
        if (list->seen.count > num_seen) return true;
    }
    return false;
}

Value filter_unique(Render *r, const Call *c)
{
    Value v = lazy(r, c, next_unique);
    v.iter->getter = arena_new(&r->arena, Getter);
    *v.iter->getter = getter_of(r, c->argv[1], (Value){0}, !arg_bool(r, c->argv[0], false));
    return v;
}

/* ---- map, select, reject ---- */

/* Prepares the iteration at the first read. False: the source is a false value, so the arguments aren't checked. */
static bool lazy_begin(Render *r, LazyList *list)
{
    bool truth = value_truth(r, list->source);
    list->is_ready = true;
    list->it = truth ? iterator_of(r, list->source) : (Iterator){.source = {.type = V_UNDEFINED}};
    list->getter = arena_new(&r->arena, Getter);
    return truth;
}

/* Finds the filter or test named by args[at] and keeps the arguments after it. Leaves list->builtin NULL if args[at] isn't given. */
static void lazy_builtin(Render *r, LazyList *list, uint32_t at, const Builtin *table, const char *what)
{
    if (list->args.count <= at) return;
    Value name = arg_text(r, list->args.items[at], "a filter's or test's name");
    list->builtin = builtin_find(table, value_str(name));
    builtin_check(r, list->builtin, what, value_str(name));
    list->args.items += at + 1;
    list->args.count -= at + 1;
}

static void begin_map(Render *r, LazyList *list)
{
    const Dict *keywords = &list->args.keywords;
    Value       attribute = dict_get_text(keywords, str_of("attribute")), otherwise = dict_get_text(keywords, str_of("default"));
    if (!lazy_begin(r, list)) return;
    lazy_builtin(r, list, 0, template_filters, "filter");
    if (list->builtin) return;
    if (keywords->count > 0u + !value_is_missing(attribute) + !value_is_missing(otherwise))
        render_fail(r, "map: a keyword argument that isn't attribute or default");
    if (value_is_missing(attribute)) render_fail(r, "map requires a filter argument");
    *list->getter = getter_of(r, attribute, otherwise, false);
}

static bool next_mapped(Render *r, LazyList *list, Value *out)
{
    if (!list->is_ready) begin_map(r, list);
    if (!iterator_next(r, &list->it, out)) return false;
    *out = list->builtin ? builtin_call(r, list->builtin, *out, &list->args) : getter_get(r, list->getter, *out);
    return true;
}

Value filter_map(Render *r, const Call *c)
{
    return lazy(r, c, next_mapped);
}

static void begin_select(Render *r, LazyList *list)
{
    bool by_attribute = list->mode & SELECT_ATTRIBUTE;
    if (!lazy_begin(r, list)) return;
    if (by_attribute && !list->args.count) render_fail(r, "missing parameter for the attribute's name");
    if (by_attribute) *list->getter = getter_of(r, list->args.items[0], (Value){0}, false);
    lazy_builtin(r, list, by_attribute, template_tests, "test");
}

static bool next_selected(Render *r, LazyList *list, Value *out)
{
    bool negate = list->mode & SELECT_NOT;
    if (!list->is_ready) begin_select(r, list);
    while (iterator_next(r, &list->it, out)) {
        Value item = getter_get(r, list->getter, *out);
        if (list->builtin) item = builtin_call(r, list->builtin, item, &list->args);
        if (value_truth(r, item) != negate) return true;
    }
    return false;
}

Value filter_select(Render *r, const Call *c)
{
    return lazy(r, c, next_selected);
}
