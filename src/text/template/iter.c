/* Iteration. A generator (what map, select and the like give) is read once: item by item from its source, or a list that
 * is made when first read. */
#include "text/template/eval.h"
#include "text/template/text.h"

#include <string.h>

bool value_is_iterable(Value v)
{
    switch ((ValueType)v.type) {
    case V_UNDEFINED:
    case V_STRING:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_RANGE:
    case V_ITER:
    case V_VIEW:
    case V_LOOP: return true;
    default: return false;
    }
}

/* Generators read generators: their nesting is bounded as that of expressions is. */
static Status enter(Render *r)
{
    if (r->depth >= RENDER_MAX_DEPTH) return render_fail(r, "generators are nested deeper than %d", RENDER_MAX_DEPTH);
    r->depth++;
    return OK;
}

Status lazy_prepare(Render *r, LazyList *list)
{
    if (list->ready) return OK;
    list->ready = true;
    TRY(enter(r));
    TRY(list->make(r, list));
    r->depth--;
    return OK;
}

static Status lazy_next(Render *r, LazyList *list, Value *out, bool *out_done)
{
    if (list->make) {
        TRY(lazy_prepare(r, list));
        *out_done = list->pos >= list->count;
        if (!*out_done) *out = list->items[list->pos++];
        return OK;
    }
    TRY(enter(r));
    TRY(list->next(r, list, out, out_done));
    r->depth--;
    return OK;
}

Status iterator_init(Render *r, Iterator *it, Value source)
{
    *it = (Iterator){ .source = source };
    switch ((ValueType)source.type) {
    case V_UNDEFINED: return OK;
    case V_STRING: it->count = source.len; return OK;
    case V_LIST:
    case V_TUPLE: it->count = source.list->count; return OK;
    case V_DICT: it->count = source.dict->count; return OK;
    case V_RANGE: it->count = source.range->count; return OK;
    case V_VIEW: it->count = source.view->dict->count; return OK;
    case V_ITER:
    case V_LOOP: return OK;
    default: return render_fail(r, "'%s' object is not iterable", value_type_name(source));
    }
}

static Value view_item(Render *r, const View *view, int64_t i)
{
    const DictEntry *entry = &view->dict->entries[i];
    if (view->kind == VIEW_KEYS) return entry->key;
    if (view->kind == VIEW_VALUES) return entry->value;
    return value_pair(r, entry->key, entry->value);
}

Status iterator_next(Render *r, Iterator *it, Value *out, bool *out_done)
{
    TRY(render_tick(r, 1));
    *out_done = false;
    if (it->source.type == V_ITER) return lazy_next(r, it->source.iter, out, out_done);
    if (it->source.type == V_LOOP) {
        Value item;
        TRY(loop_next(r, it->source.loop, &item, out_done));
        if (!*out_done) *out = value_pair(r, item, it->source);
        return OK;
    }
    if (it->pos >= it->count) {
        *out_done = true;
        return OK;
    }
    int64_t i = it->pos++;
    switch ((ValueType)it->source.type) {
    case V_LIST:
    case V_TUPLE: *out = it->source.list->items[i]; break;
    case V_DICT: *out = it->source.dict->entries[i].key; break;
    case V_RANGE: *out = value_int(it->source.range->start + i * it->source.range->step); break;
    case V_VIEW: *out = view_item(r, it->source.view, i); break;
    default: { /* a text: pos counts bytes */
        size_t end = (size_t)i;
        utf8_next(it->source.text, it->source.len, &end);
        *out = value_text(it->source.text + i, end - (size_t)i);
        it->pos = (int64_t)end;
    }
    }
    return OK;
}

Status value_to_list(Render *r, Value source, List *out)
{
    uint32_t capacity = 8;
    Iterator it;
    TRY(iterator_init(r, &it, source));
    if (it.count > 0 && source.type != V_STRING) capacity = (uint32_t)it.count;
    *out = (List){ .items = arena_array(&r->arena, Value, capacity) };
    for (;;) {
        bool  done;
        Value item;
        TRY(iterator_next(r, &it, &item, &done));
        if (done) return OK;
        if (out->count == capacity) {
            Value *items = arena_array(&r->arena, Value, (size_t)capacity * 2);
            memcpy(items, out->items, out->count * sizeof *items);
            out->items = items;
            capacity *= 2;
        }
        out->items[out->count++] = item;
    }
}
