/* Merge sort, stable as Python's, with a comparison that can fail. */
#include "text/template/repr.h"

#include <string.h>

typedef struct Sorter {
    Render   *r;
    Value    *keys;
    uint32_t *order, *scratch;
    bool      reverse;
} Sorter;

/* Whether b must stand before a; `reverse` keeps the order of equals too. */
static Status is_before(const Sorter *s, uint32_t b, uint32_t a, bool *out)
{
    int order;
    TRY(render_tick(s->r, 1));
    TRY(value_compare(s->r, s->keys[b], s->keys[a], "<", &order));
    *out = s->reverse ? order == 1 : order == -1;
    return OK;
}

static Status merge_sort(Sorter *s, uint32_t begin, uint32_t end)
{
    if (end - begin < 2) return OK;
    uint32_t middle = begin + (end - begin) / 2, a = begin, b = middle, n = begin;
    TRY(merge_sort(s, begin, middle));
    TRY(merge_sort(s, middle, end));
    while (a < middle || b < end) {
        bool take_b = a == middle;
        if (a < middle && b < end) TRY(is_before(s, s->order[b], s->order[a], &take_b));
        s->scratch[n++] = s->order[take_b ? b++ : a++];
    }
    memcpy(s->order + begin, s->scratch + begin, (end - begin) * sizeof *s->order);
    return OK;
}

Status sort_values(Render *r, Value *items, Value *keys, uint32_t count, bool reverse)
{
    Sorter s = { .r = r, .keys = keys, .reverse = reverse };
    s.order = arena_array(&r->arena, uint32_t, (size_t)count * 2 + 1);
    s.scratch = s.order + count;
    Value *sorted = arena_array(&r->arena, Value, (size_t)count * 2 + 1);
    for (uint32_t i = 0; i < count; i++) s.order[i] = i;
    TRY(merge_sort(&s, 0, count));
    for (uint32_t i = 0; i < count; i++) {
        sorted[i] = items[s.order[i]];
        sorted[count + i] = keys[s.order[i]];
    }
    if (count) memcpy(items, sorted, count * sizeof *items);
    if (count) memcpy(keys, sorted + count, count * sizeof *keys);
    return OK;
}

Status sort_entries(Render *r, const Dict *dict, DictEntry **out)
{
    Value *keys = arena_array(&r->arena, Value, dict->count), *index = arena_array(&r->arena, Value, dict->count);
    for (uint32_t i = 0; i < dict->count; i++) {
        keys[i] = dict->entries[i].key;
        index[i] = value_int(i);
    }
    TRY(sort_values(r, index, keys, dict->count, false));
    *out = arena_array(&r->arena, DictEntry, dict->count);
    for (uint32_t i = 0; i < dict->count; i++) (*out)[i] = dict->entries[index[i].integer];
    return OK;
}
