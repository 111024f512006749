/* Iteration, generators, and the state of running loops. */
#include "text/template/render.h"
#include "text/template/text.h"

#include <string.h>

/* The next item of a generator. Its source may be a generator too, so the nesting is limited, like the nesting of expressions. */
static bool lazy_next(Render *r, LazyList *list, Value *out)
{
    render_deeper(r);
    bool more = list->next ? list->next(r, list, out) : iterator_next(r, &list->it, out);
    r->depth--;
    return more;
}

Iterator iterator_of(Render *r, Value source)
{
    if (source.type == V_LOOP) render_fail(r, "iterating over loop is not supported");
    if (!value_is(source, TYPES_ITERABLE)) render_fail(r, "'%s' object is not iterable", value_type_name(source));
    if (source.type == V_DICT) render_looks_at(r, source.dict, (Str){0});
    int64_t count = source.type == V_STRING ? source.len : source.type == V_ITER ? 0 : value_length(r, source);
    return (Iterator){.source = source, .count = count};
}

static Value view_item(Render *r, const View *view, int64_t i)
{
    const DictEntry *entry = &view->dict->entries[i];
    if (view->kind == VIEW_ITEMS) return value_pair(r, entry->key, entry->value);
    return view->kind == VIEW_KEYS ? entry->key : entry->value;
}

bool iterator_next(Render *r, Iterator *it, Value *out)
{
    Value source = it->source;
    render_tick(r, 1);
    if (source.type == V_ITER) return lazy_next(r, source.iter, out);
    if (it->pos >= it->count) return false;
    size_t i = (size_t)it->pos++, end = i;
    switch ((ValueType)source.type) {
    case V_LIST:
    case V_TUPLE:
        *out = source.list->items[i];
        break;
    case V_DICT:
        *out = source.dict->entries[i].key;
        break;
    case V_RANGE:
        *out = value_int(source.range->start + (int64_t)i * source.range->step);
        break;
    case V_VIEW:
        *out = view_item(r, source.view, (int64_t)i);
        break;
    default: /* V_STRING: pos is a byte offset */
        utf8_next(value_str(source), &end);
        *out = value_text(source.text + i, end - i);
        it->pos = (int64_t)end;
    }
    return true;
}

List value_to_list(Render *r, Value source)
{
    List  list = {0};
    Value item;
    for (Iterator it = iterator_of(r, source); iterator_next(r, &it, &item);) {
        if (!list.capacity && source.type != V_STRING && it.count > 0)
            list.items = arena_array(&r->arena, Value, list.capacity = (uint32_t)it.count);
        list.items = arena_room(&r->arena, list.items, list.count + 1, &list.capacity, sizeof item);
        list.items[list.count++] = item;
    }
    return list;
}

/* The next item that passes the loop's filter. */
static bool pull(Render *r, LoopState *loop, Value *out)
{
    const Node *node = loop->node;
    while (iterator_next(r, &loop->it, out)) {
        if (!node->c || loop->filtered) return true;
        Frame *frame = r->frame;
        int    line = r->line;
        frame_enter(r, loop->frame, node->test_scope);
        assign_target(r, node->a, *out);
        bool passes = value_truth(r, eval(r, node->c));
        r->frame = frame;
        r->line = line;
        if (passes) return true;
    }
    return false;
}

bool loop_next(Render *r, LoopState *loop, Value *out)
{
    *out = loop->after;
    loop->after = (Value){0};
    if (value_is_missing(*out) && !pull(r, loop, out)) return false;
    loop->index0++;
    loop->before = loop->current;
    loop->current = *out;
    return true;
}

/* The number of items. If it isn't known from the source, the remaining items are read into a list. */
int64_t loop_length(Render *r, LoopState *loop)
{
    if (loop->length >= 0) return loop->length;
    if (!loop->node->c && loop->it.source.type != V_ITER) return loop->length = value_length(r, loop->it.source);
    List  rest = {0};
    Value item;
    while (pull(r, loop, &item)) list_add(r, &rest, item);
    loop->filtered = true;
    loop->it = iterator_of(r, value_list(r, V_LIST, rest));
    return loop->length = rest.count + loop->index0 + 1 + !value_is_missing(loop->after);
}

Value loop_attribute(Render *r, LoopState *loop, Str name)
{
    if (str_equal(name, "index")) return value_int(loop->index0 + 1);
    if (str_equal(name, "index0")) return value_int(loop->index0);
    if (str_equal(name, "first")) return value_bool(loop->index0 == 0);
    if (str_equal(name, "depth")) return value_int(loop->depth0 + 1);
    if (str_equal(name, "depth0")) return value_int(loop->depth0);
    if (str_equal(name, "length")) return value_int(loop_length(r, loop));
    if (str_equal(name, "revindex")) return value_int(loop_length(r, loop) - loop->index0);
    if (str_equal(name, "revindex0")) return value_int(loop_length(r, loop) - loop->index0 - 1);
    if (str_equal(name, "previtem")) return loop->index0 == 0 ? value_hint("there is no previous item") : loop->before;
    bool is_last = str_equal(name, "last");
    if (!is_last && !str_equal(name, "nextitem")) return (Value){0};
    Value item;
    if (value_is_missing(loop->after) && pull(r, loop, &item)) loop->after = item;
    bool none = value_is_missing(loop->after);
    if (is_last) return value_bool(none);
    return none ? value_hint("there is no next item") : loop->after;
}
