/* Methods of Python's types that don't change their object. Methods that would change it are rows of `refused`: like Jinja's sandbox we
 * return an undefined value for them, which fails when it is called. */
#include "text/template/render.h"
#include "text/template/text.h"

#include <math.h>
#include <string.h>

/* ---- texts: case and ends ---- */

static Value part_of(Value self, size_t begin, size_t len)
{
    Value v = value_text(self.text + begin, len);
    v.flags = self.flags;
    return v;
}

Value text_case(Render *r, const Call *c)
{
    Value  self = value_to_text(r, c->self), v;
    size_t begin = r->out.len;
    text_check(r, self.len);
    render_tick(r, self.len >> 5);
    text_map_case(&r->out, value_str(self), (CaseMap)c->mode);
    v = text_take(r, begin);
    v.flags = self.flags & VALUE_MARKUP;
    return v;
}

Value text_trim(Render *r, const Call *c)
{
    Value self = value_to_text(r, c->self), chars = c->argv[0];
    bool  left = c->mode & SIDE_LEFT, right = c->mode & SIDE_RIGHT;
    Str   text = value_str(self), result;
    if (value_is_given(chars)) {
        arg_text(r, chars, "the argument of strip");
        render_tick(r, (int64_t)self.len * (chars.len >> 6));
        result = text_strip_chars(text, value_str(chars), left, right);
    } else {
        result = text_strip(text, left, right);
    }
    render_tick(r, (int64_t)((self.len - result.len) >> 4)); /* only the stripped characters were read */
    return part_of(self, (size_t)(result.data - self.text), result.len);
}

/* ---- texts: splitting ---- */

static void split_spaces(Render *r, Value self, int64_t most, List *parts)
{
    for (Str rest = value_str(self);;) {
        rest = text_strip(rest, true, false);
        if (!rest.len) return;
        bool   is_rest = most >= 0 && parts->count >= most;
        size_t end = is_rest ? rest.len : 0, next = 0;
        while (end < rest.len && !cp_is_space(utf8_next(rest, &next))) end = next;
        list_add(r, parts, part_of(self, (size_t)(rest.data - self.text), end));
        rest = (Str){rest.data + end, rest.len - end};
    }
}

static void split_at(Render *r, Value self, Value sep, int64_t most, bool right, List *parts)
{
    size_t begin = 0, end = self.len;
    if (!sep.len) render_fail(r, "empty separator");
    while (most < 0 || parts->count < most) {
        Str rest = {self.text + begin, end - begin};
        if (right) render_tick(r, (int64_t)rest.len * (sep.len >> 6)); /* text_find_last compares at every position */
        size_t hit = right ? text_find_last(rest, value_str(sep)) : text_find(rest, value_str(sep), 0);
        if (right) render_tick_chars(r, hit == SIZE_MAX ? rest.len : rest.len - hit);
        if (hit == SIZE_MAX) break;
        size_t behind = begin + hit + sep.len;
        list_add(r, parts, right ? part_of(self, behind, end - behind) : part_of(self, begin, hit));
        if (right)
            end = begin + hit;
        else
            begin = behind;
    }
    list_add(r, parts, part_of(self, begin, end - begin));
}

Value str_split(Render *r, const Call *c)
{
    List    parts = {0};
    bool    right = c->mode == SIDE_RIGHT;
    int64_t most = arg_int(r, c->argv[1], "maxsplit", -1);
    render_tick_chars(r, c->self.len);
    if (right && !value_is_given(c->argv[0]) && most >= 0) render_fail(r, "rsplit: a maxsplit at white space is not supported");
    if (value_is_given(c->argv[0]))
        split_at(r, c->self, arg_text(r, c->argv[0], "the separator"), most, right, &parts);
    else
        split_spaces(r, c->self, most, &parts);
    if (right && value_is_given(c->argv[0])) list_reverse(parts);
    return value_list(r, V_LIST, parts);
}

static bool is_line_break(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

Value text_lines(Render *r, Value text, bool keep)
{
    List lines = {0};
    Str  all = value_str(text);
    render_tick_chars(r, text.len);
    for (size_t begin = 0, next = 0; begin < all.len; begin = next) {
        size_t end = begin;
        for (bool breaks = false; !breaks && next < all.len;) {
            uint32_t cp = utf8_next(all, &next);
            breaks = is_line_break(cp);
            if (cp == '\r' && next < all.len && all.data[next] == '\n') next++;
            if (!breaks || keep) end = next;
        }
        list_add(r, &lines, part_of(text, begin, end - begin));
    }
    return value_list(r, V_LIST, lines);
}

Value str_splitlines(Render *r, const Call *c)
{
    return text_lines(r, c->self, arg_bool(r, c->argv[0], false));
}

Value str_partition(Render *r, const Call *c)
{
    Value self = c->self, sep = arg_text(r, c->argv[0], "the separator");
    List  parts = {0};
    if (!sep.len) render_fail(r, "empty separator");
    render_tick_chars(r, self.len);
    size_t hit = text_find(value_str(self), value_str(sep), 0), behind = hit + sep.len;
    if (hit == SIZE_MAX) hit = behind = self.len;
    list_add(r, &parts, part_of(self, 0, hit));
    list_add(r, &parts, part_of(self, hit, behind - hit));
    list_add(r, &parts, part_of(self, behind, self.len - behind));
    return value_list(r, V_TUPLE, parts);
}

/* ---- texts: searching; Python's start and end are not supported ---- */

static Str searched(Render *r, const Call *c)
{
    if (value_is_given(c->argv[1]) || value_is_given(c->argv[2])) render_fail(r, "%s: a start or end is not supported", c->name);
    return value_str(c->self);
}

/* find and index. Mode 1 (index): fails if the text isn't found. */
Value str_find(Render *r, const Call *c)
{
    render_tick_chars(r, c->self.len);
    size_t hit = text_find(searched(r, c), value_str(arg_text(r, c->argv[0], "the text to find")), 0);
    if (hit == SIZE_MAX && c->mode) render_fail(r, "substring not found");
    return value_int(hit == SIZE_MAX ? -1 : (int64_t)utf8_count((Str){c->self.text, hit}));
}

Value str_count(Render *r, const Call *c)
{
    Str     text = searched(r, c), needle = value_str(arg_text(r, c->argv[0], "the text to count"));
    int64_t count = 0;
    render_tick_chars(r, c->self.len);
    if (!needle.len) return value_int((int64_t)utf8_count(text) + 1);
    for (size_t at = 0; (at = text_find(text, needle, at)) != SIZE_MAX; at += needle.len) count++;
    render_tick(r, count >> 2);
    return value_int(count);
}

static bool has_affix(Render *r, Str text, Value affix, bool at_end)
{
    if (affix.len > text.len) return false;
    render_tick(r, 1 + (affix.len >> 10));
    return at_end ? str_ends(text, value_str(affix)) : str_starts(text, value_str(affix));
}

Value str_affix(Render *r, const Call *c)
{
    Str  text = searched(r, c);
    bool found = false, is_tuple = c->argv[0].type == V_TUPLE;
    List list = is_tuple ? *c->argv[0].list : (List){.items = (Value *)c->argv, .count = 1};
    for (uint32_t i = 0; i < list.count && !found; i++)
        found = has_affix(r, text, arg_text(r, list.items[i], "a prefix or suffix"), c->mode == SIDE_RIGHT);
    return value_bool(found);
}

Value str_remove(Render *r, const Call *c)
{
    Value affix = arg_text(r, c->argv[0], "a prefix or suffix");
    bool  right = c->mode == SIDE_RIGHT;
    if (!has_affix(r, value_str(c->self), affix, right)) return c->self;
    return part_of(c->self, right ? 0 : affix.len, c->self.len - affix.len);
}

/* ---- texts: building ---- */

Value text_replace(Render *r, Value text, Value old, Value new_text, int64_t most)
{
    Str     self = value_str(arg_text(r, text, "replace: the text"));
    size_t  begin = r->out.len, pos = 0;
    int64_t done = 0;
    arg_text(r, old, "replace: the old text");
    arg_text(r, new_text, "replace: the new text");
    if (text.flags & VALUE_MARKUP) new_text = value_to_markup(r, new_text);
    render_tick_chars(r, self.len);
    while (most < 0 || done < most) {
        size_t hit = text_find(self, value_str(old), pos);
        if (hit == SIZE_MAX) break;
        strbuf_append(&r->out, self.data + pos, hit - pos);
        strbuf_append(&r->out, new_text.text, new_text.len);
        text_fits(r);
        pos = hit + old.len;
        done++;
        if (old.len) continue;
        if (pos >= self.len) break;
        size_t from = pos;
        utf8_next(self, &pos);
        strbuf_append(&r->out, self.data + from, pos - from);
    }
    render_tick(r, done >> 2);
    if (!done) return text;
    strbuf_append(&r->out, self.data + pos, self.len - pos);
    return text_take(r, begin);
}

Value str_replace(Render *r, const Call *c)
{
    return text_replace(r, c->self, c->argv[0], c->argv[1], arg_int(r, c->argv[2], "replace: the count", -1));
}

Value str_join(Render *r, const Call *c)
{
    size_t   begin = r->out.len;
    Iterator it = iterator_of(r, c->argv[0]);
    Value    item;
    for (int64_t i = 0; iterator_next(r, &it, &item); i++) {
        item = value_is_markup(c->self) ? value_to_markup(r, item) : arg_text(r, item, "an item to join");
        if (i) strbuf_append(&r->out, c->self.text, c->self.len);
        strbuf_append(&r->out, item.text, item.len);
        text_fits(r);
    }
    return text_take(r, begin);
}

Value str_format(Render *r, const Call *c)
{
    return format_braces(r, c->self, c->args);
}

/* ---- texts: tests of all characters ---- */

Value str_isspace(Render *r, const Call *c)
{
    render_tick_chars(r, c->self.len);
    return value_bool(c->self.len && text_strip(value_str(c->self), true, false).len == 0);
}

Value str_isdigit(Render *r, const Call *c)
{
    bool all = c->self.len > 0;
    render_tick_chars(r, c->self.len);
    for (size_t pos = 0; all && pos < c->self.len;) {
        uint32_t cp = utf8_next(value_str(c->self), &pos);
        if (cp_is_other_number(cp)) render_fail(r, "isdigit() of raised, circled and other such digits is not supported");
        all = cp_is_decimal(cp);
    }
    return value_bool(all);
}

/* ---- lists, dicts, loops ---- */

Value list_count(Render *r, const Call *c)
{
    const List *list = c->self.list;
    int64_t     count = 0;
    render_tick(r, list->count);
    for (uint32_t i = 0; i < list->count; i++) count += value_equal(r, list->items[i], c->argv[0]);
    return value_int(count);
}

Value list_index(Render *r, const Call *c)
{
    const List *list = c->self.list;
    render_tick(r, list->count);
    for (uint32_t i = 0; i < list->count; i++)
        if (value_equal(r, list->items[i], c->argv[0])) return value_int(i);
    render_fail(r, "list.index: the value is not in the list");
}

Value dict_method_get(Render *r, const Call *c)
{
    value_hashable(r, c->argv[0]);
    return value_or(dict_get(r, c->self.dict, c->argv[0]), value_or(c->argv[1], value_none()));
}

Value dict_view(Render *r, const Call *c)
{
    return value_view(r, c->self.dict, (ViewKind)c->mode);
}

Value loop_cycle(Render *r, const Call *c)
{
    if (!c->args->count) render_fail(r, "no items for cycling given");
    return c->args->items[c->self.loop->index0 % c->args->count];
}

Value loop_changed(Render *r, const Call *c)
{
    LoopState *loop = c->self.loop;
    Value      before = loop->changed;
    loop->changed = value_list(r, V_TUPLE, (List){.items = (Value *)c->args->items, .count = c->args->count});
    return value_bool(value_is_missing(before) || !value_equal(r, before, loop->changed));
}
