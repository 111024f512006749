/* Methods of Python's types that change nothing. One that would change its object has a name and no call: the sandbox
 * answers with an undefined that complains when called. */
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
    text_map_case(&r->out, value_str(self), (CaseMap)c->mode);
    v = text_take(r, begin);
    v.flags = self.flags & (VALUE_MARKUP | VALUE_ASCII);
    return v;
}

Value text_trim(Render *r, const Call *c)
{
    Value self = value_to_text(r, c->self), chars = c->argv[0];
    bool  left = c->mode & SIDE_LEFT, right = c->mode & SIDE_RIGHT;
    Str   text = value_str(self), result;
    if (value_is_given(chars)) {
        arg_text(r, chars, "the argument of strip");
        render_tick(r, (int64_t)self.len * (chars.len + 1) >> 10);
        result = text_strip_chars(text, value_str(chars), left, right);
    } else {
        result = text_strip(text, left, right);
    }
    return part_of(self, (size_t)(result.data - self.text), result.len);
}

/* ---- texts: splitting ---- */

/* The place of a separator or SIZE_MAX; searching backwards compares at every place: the product bounds it. */
static size_t search(Render *r, Str text, Value needle, bool backward)
{
    if (!backward) return text_find(text, value_str(needle), 0);
    render_tick(r, (int64_t)(text.len * needle.len >> 12));
    return text_find_last(text, value_str(needle));
}

static void reverse(List list)
{
    for (uint32_t i = 0; i < list.count / 2; i++) {
        Value swap = list.items[i];
        list.items[i] = list.items[list.count - 1 - i];
        list.items[list.count - 1 - i] = swap;
    }
}

/* At white space; from the right the parts come in reverse. */
static void split_spaces(Render *r, Value self, int64_t most, bool right, List *parts)
{
    Str rest = value_str(self);
    for (;;) {
        rest = text_strip(rest, !right, right);
        if (!rest.len) return;
        size_t begin = 0, end = rest.len;
        bool   is_rest = most >= 0 && parts->count >= most;
        for (size_t at = 0; !right && !is_rest && at < rest.len;) {
            size_t start = at;
            if (!cp_is_space(utf8_next(rest, &at))) continue;
            end = start;
            break;
        }
        for (size_t at = rest.len; right && !is_rest && at > 0;) {
            size_t stop = at, next = at = utf8_back(rest.data, at);
            if (!cp_is_space(utf8_next(rest, &next))) continue;
            begin = stop;
            break;
        }
        list_add(r, parts, part_of(self, (size_t)(rest.data - self.text) + begin, end - begin));
        if (is_rest) return;
        rest = right ? (Str){rest.data, begin} : (Str){rest.data + end, rest.len - end};
    }
}

static void split_at(Render *r, Value self, Value sep, int64_t most, bool right, List *parts)
{
    size_t begin = 0, end = self.len;
    if (!sep.len) render_fail(r, "empty separator");
    while (most < 0 || parts->count < most) {
        size_t hit = search(r, (Str){self.text + begin, end - begin}, sep, right);
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

static Value str_split(Render *r, const Call *c)
{
    List    parts = {0};
    bool    right = c->mode == SIDE_RIGHT;
    int64_t most = arg_int(r, c->argv[1], "maxsplit", -1);
    render_tick(r, c->self.len >> 8);
    if (value_is_given(c->argv[0]))
        split_at(r, c->self, arg_text(r, c->argv[0], "the separator"), most, right, &parts);
    else
        split_spaces(r, c->self, most, right, &parts);
    if (right) reverse(parts);
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
    render_tick(r, text.len >> 8);
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

static Value str_splitlines(Render *r, const Call *c)
{
    return text_lines(r, c->self, arg_bool(r, c->argv[0], false));
}

static Value str_partition(Render *r, const Call *c)
{
    Value self = c->self, sep = arg_text(r, c->argv[0], "the separator");
    bool  right = c->mode == SIDE_RIGHT;
    List  parts = {0};
    if (!sep.len) render_fail(r, "empty separator");
    render_tick(r, self.len >> 8);
    size_t hit = search(r, value_str(self), sep, right), behind = hit + sep.len;
    if (hit == SIZE_MAX) hit = behind = right ? 0 : self.len;
    list_add(r, &parts, part_of(self, 0, hit));
    list_add(r, &parts, part_of(self, hit, behind - hit));
    list_add(r, &parts, part_of(self, behind, self.len - behind));
    return value_list(r, V_TUPLE, parts);
}

/* ---- texts: searching; start and end count characters as in a slice ---- */

/* The part that is searched; false when there is none. */
static bool window(Render *r, const Call *c, Str *out, int64_t *out_start)
{
    Str     self = value_str(c->self);
    int64_t length = value_length(r, c->self), start = 0, end = length;
    if (value_is_given(c->argv[1])) start = arg_int(r, c->argv[1], "start", 0);
    if (value_is_given(c->argv[2])) end = arg_int(r, c->argv[2], "end", 0);
    if (end > length) end = length;
    if (end < 0) end = end < -length ? 0 : end + length;
    if (start < 0) start = start < -length ? 0 : start + length;
    *out_start = start;
    if (start > end) return false;
    render_tick(r, self.len >> 8);
    size_t begin = utf8_offset(self, (size_t)start);
    self = (Str){self.data + begin, self.len - begin};
    *out = (Str){self.data, utf8_offset(self, (size_t)(end - start))};
    return true;
}

enum { FIND_LAST = 1, FIND_MUST = 2 };

static Value str_find(Render *r, const Call *c)
{
    Value   needle = arg_text(r, c->argv[0], "the text to find");
    Str     text;
    int64_t start;
    size_t  hit = window(r, c, &text, &start) ? search(r, text, needle, c->mode & FIND_LAST) : SIZE_MAX;
    if (hit == SIZE_MAX && c->mode & FIND_MUST) render_fail(r, "substring not found");
    return value_int(hit == SIZE_MAX ? -1 : start + (int64_t)utf8_count((Str){text.data, hit}));
}

static Value str_count(Render *r, const Call *c)
{
    Str     text, needle = value_str(arg_text(r, c->argv[0], "the text to count"));
    int64_t start, count = 0;
    if (!window(r, c, &text, &start)) return value_int(0);
    if (!needle.len) return value_int((int64_t)utf8_count(text) + 1);
    for (size_t at = 0; (at = text_find(text, needle, at)) != SIZE_MAX; at += needle.len) count++;
    return value_int(count);
}

static bool has_affix(Str text, Value affix, bool at_end)
{
    if (affix.len > text.len) return false;
    return affix.len == 0 || memcmp(text.data + (at_end ? text.len - affix.len : 0), affix.text, affix.len) == 0;
}

static Value str_affix(Render *r, const Call *c)
{
    Str     text = {0};
    int64_t start;
    bool    found = false, is_tuple = c->argv[0].type == V_TUPLE, has_window = window(r, c, &text, &start);
    List    list = is_tuple ? *c->argv[0].list : (List){.items = (Value *)c->argv, .count = 1};
    for (uint32_t i = 0; i < list.count && !found; i++)
        found = has_affix(text, arg_text(r, list.items[i], "a prefix or suffix"), c->mode == SIDE_RIGHT) && has_window;
    return value_bool(found);
}

static Value str_remove(Render *r, const Call *c)
{
    Value affix = arg_text(r, c->argv[0], "a prefix or suffix");
    bool  right = c->mode == SIDE_RIGHT;
    if (!has_affix(value_str(c->self), affix, right)) return c->self;
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
    render_tick(r, self.len >> 8);
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
    if (!done) return text;
    strbuf_append(&r->out, self.data + pos, self.len - pos);
    return text_take(r, begin);
}

static Value str_replace(Render *r, const Call *c)
{
    return text_replace(r, c->self, c->argv[0], c->argv[1], arg_int(r, c->argv[2], "replace: the count", -1));
}

static Value str_join(Render *r, const Call *c)
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

Value text_pad(Render *r, Value text, int64_t width, Value fill, int side)
{
    size_t begin = r->out.len;
    arg_text(r, fill, "the fill character");
    if (text.flags & VALUE_MARKUP) fill = value_to_markup(r, fill);
    if (utf8_count(value_str(fill)) != 1) render_fail(r, "the fill character must be exactly one character long");
    int64_t margin = width - value_length(r, text);
    if (margin <= 0) return text;
    if (width > RENDER_MAX_TEXT_BYTES) text_check(r, (size_t)width);
    int64_t left = side == SIDE_RIGHT ? 0 : side == SIDE_LEFT ? margin : margin / 2 + (margin & width & 1);
    text_check(r, text.len + (size_t)margin * fill.len);
    for (int64_t i = 0; i < left; i++) strbuf_append(&r->out, fill.text, fill.len);
    strbuf_append(&r->out, text.text, text.len);
    for (int64_t i = left; i < margin; i++) strbuf_append(&r->out, fill.text, fill.len);
    return text_take(r, begin);
}

static Value str_pad(Render *r, const Call *c)
{
    int64_t width = arg_int(r, c->argv[0], "the width", 0);
    return text_pad(r, c->self, width, value_or(c->argv[1], value_text(" ", 1)), (int)c->mode);
}

static Value str_zfill(Render *r, const Call *c)
{
    size_t  sign = c->self.len && (c->self.text[0] == '+' || c->self.text[0] == '-'), begin = r->out.len;
    int64_t width = arg_int(r, c->argv[0], "the width", 0), margin = width - value_length(r, c->self);
    if (margin <= 0) return c->self;
    text_check(r, (size_t)width);
    strbuf_append(&r->out, c->self.text, sign);
    for (int64_t i = 0; i < margin; i++) strbuf_putc(&r->out, '0');
    strbuf_append(&r->out, c->self.text + sign, c->self.len - sign);
    return text_take(r, begin);
}

static Value str_expandtabs(Render *r, const Call *c)
{
    int64_t size = arg_int(r, c->argv[0], "the tab size", 8), column = 0;
    size_t  begin = r->out.len;
    Str     self = value_str(c->self);
    if (size > 1000) render_fail(r, "expandtabs: a tab size beyond 1000 is not supported");
    for (size_t pos = 0, from = 0; pos < self.len; from = pos) {
        uint32_t cp = utf8_next(self, &pos);
        if (cp != '\t') strbuf_append(&r->out, self.data + from, pos - from);
        for (int64_t n = cp == '\t' && size > 0 ? size - column % size : 0; n > 0; n--, column++) strbuf_putc(&r->out, ' ');
        if (cp != '\t') column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        text_fits(r);
    }
    return text_take(r, begin);
}

static Value str_format(Render *r, const Call *c)
{
    return format_braces(r, c->self, c->args);
}

static Value str_format_map(Render *r, const Call *c)
{
    if (c->argv[0].type != V_DICT) render_fail(r, "format_map takes a dict");
    const Dict *dict = c->argv[0].dict;
    Keyword    *keywords = arena_array(&r->arena, Keyword, dict->count);
    Args        args = {.keywords = keywords};
    for (uint32_t i = 0; i < dict->count; i++)
        if (dict->entries[i].key.type == V_STRING)
            keywords[args.num_keywords++] = (Keyword){value_str(dict->entries[i].key), dict->entries[i].value};
    return format_braces(r, c->self, &args);
}

/* ---- texts: tests of all characters ---- */

static bool cp_is_ascii(uint32_t cp)
{
    return cp < 0x80;
}

/* Every character is of a class; `mode` tells which. ASCII and printable are true of the empty text. */
typedef enum CharClass {
    CHARS_ALNUM,
    CHARS_ALPHA,
    CHARS_DECIMAL,
    CHARS_DIGIT,
    CHARS_NUMERIC,
    CHARS_SPACE,
    CHARS_ASCII,
    CHARS_PRINTABLE
} CharClass;

static Value str_is(Render *r, const Call *c)
{
    static bool (*const tests[])(uint32_t) = {cp_is_alnum,   cp_is_alpha, cp_is_decimal, cp_is_digit,
                                              cp_is_numeric, cp_is_space, cp_is_ascii,   cp_is_printable};
    bool all = c->self.len || c->mode >= CHARS_ASCII;
    render_tick(r, c->self.len >> 8);
    for (size_t pos = 0; all && pos < c->self.len;) all = tests[c->mode](utf8_next(value_str(c->self), &pos));
    return value_bool(all);
}

static Value str_isidentifier(Render *r, const Call *c)
{
    bool all = c->self.len > 0;
    render_tick(r, c->self.len >> 8);
    for (size_t pos = 0; all && pos < c->self.len;) {
        bool is_first = pos == 0;
        all = cp_is_identifier(utf8_next(value_str(c->self), &pos), is_first);
    }
    return value_bool(all);
}

/* islower, isupper: some cased letter, none of the other case. */
Value text_cased(Render *r, const Call *c)
{
    bool  is_cased = false, lower = c->mode == CASE_LOWER;
    Value self = value_to_text(r, c->self);
    render_tick(r, self.len >> 8);
    for (size_t pos = 0; pos < self.len;) {
        uint32_t cp = utf8_next(value_str(self), &pos);
        if (cp_is_title(cp) || (lower ? cp_is_upper(cp) : cp_is_lower(cp))) return value_bool(false);
        is_cased |= lower ? cp_is_lower(cp) : cp_is_upper(cp);
    }
    return value_bool(is_cased);
}

static Value str_istitle(Render *r, const Call *c)
{
    bool is_cased = false, previous = false;
    render_tick(r, c->self.len >> 8);
    for (size_t pos = 0; pos < c->self.len;) {
        uint32_t cp = utf8_next(value_str(c->self), &pos);
        bool     capital = cp_is_upper(cp) || cp_is_title(cp), small = cp_is_lower(cp);
        if ((capital && previous) || (small && !previous)) return value_bool(false);
        previous = capital || small;
        is_cased |= previous;
    }
    return value_bool(is_cased);
}

/* ---- lists, ranges, dicts ---- */

/* A range as the list of its items. */
static const List *items_of(Render *r, Value self)
{
    if (self.type != V_RANGE) return self.list;
    List *list = arena_new(&r->arena, List);
    *list = value_to_list(r, self);
    return list;
}

static Value list_count(Render *r, const Call *c)
{
    const List *list = items_of(r, c->self);
    int64_t     count = 0;
    render_tick(r, list->count);
    for (uint32_t i = 0; i < list->count; i++) count += value_equal(r, list->items[i], c->argv[0]);
    return value_int(count);
}

static Value list_index(Render *r, const Call *c)
{
    const List *list = items_of(r, c->self);
    int64_t     length = list->count, start = 0, end = length;
    if (value_is(c->argv[1], TYPES_INTEGRAL)) start = value_as_int(c->argv[1]);
    if (value_is(c->argv[2], TYPES_INTEGRAL)) end = value_as_int(c->argv[2]);
    if (start < 0) start = start < -length ? 0 : start + length;
    if (end < 0) end += length;
    render_tick(r, length);
    for (int64_t i = start; i < end && i < length; i++)
        if (value_equal(r, list->items[i], c->argv[0])) return value_int(i);
    render_fail(r, "list.index: the value is not in the list");
}

static Value list_copy(Render *r, const Call *c)
{
    return value_list(r, V_LIST, value_to_list(r, c->self));
}

static Value dict_method_get(Render *r, const Call *c)
{
    value_hashable(r, c->argv[0]);
    return value_or(dict_get(r, c->self.dict, c->argv[0]), value_or(c->argv[1], value_none()));
}

static Value dict_view(Render *r, const Call *c)
{
    return value_view(r, c->self.dict, (ViewKind)c->mode);
}

static Value dict_copy(Render *r, const Call *c)
{
    const Dict *dict = c->self.dict;
    Dict       *copy = arena_new(&r->arena, Dict);
    copy->entries = arena_array(&r->arena, DictEntry, dict->count);
    copy->count = copy->capacity = dict->count;
    if (copy->count) memcpy(copy->entries, dict->entries, copy->count * sizeof *copy->entries);
    render_tick(r, copy->count >> 3);
    return value_dict(copy);
}

static Value dict_fromkeys(Render *r, const Call *c)
{
    Dict *dict = arena_new(&r->arena, Dict);
    Value key;
    for (Iterator it = iterator_of(r, c->argv[0]); iterator_next(r, &it, &key);) dict_set(r, dict, key, value_or(c->argv[1], value_none()));
    return value_dict(dict);
}

/* ---- numbers, loops, cyclers ---- */

static Value number_is_integer(Render *r, const Call *c)
{
    (void)r;
    return value_bool(isfinite(c->self.number) && floor(c->self.number) == c->self.number);
}

static Value number_bit_length(Render *r, const Call *c)
{
    int64_t  i = value_as_int(c->self);
    uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    (void)r;
    return value_int(magnitude ? 64 - __builtin_clzll(magnitude) : 0);
}

static Value loop_cycle(Render *r, const Call *c)
{
    if (!c->args->count) render_fail(r, "no items for cycling given");
    return c->args->items[c->self.loop->index0 % c->args->count];
}

static Value loop_changed(Render *r, const Call *c)
{
    LoopState *loop = c->self.loop;
    Value      before = loop->changed;
    loop->changed = value_list(r, V_TUPLE, (List){.items = (Value *)c->args->items, .count = c->args->count});
    return value_bool(value_is_missing(before) || !value_equal(r, before, loop->changed));
}

static Value cycler_next(Render *r, const Call *c)
{
    Cycler *cycler = c->self.cycler;
    Value   v = cycler->items.items[cycler->pos];
    (void)r;
    cycler->pos = (cycler->pos + 1) % cycler->items.count;
    return v;
}

static Value cycler_reset(Render *r, const Call *c)
{
    (void)r;
    c->self.cycler->pos = 0;
    return value_none();
}

/* One that Python has and we don't; `mode` is its row. */
static Value unsupported(Render *r, const Call *c)
{
    render_fail(r, "the method %s() is not supported", template_methods[c->mode].name);
}

/* Parameters of str's methods have no names, as in Python, but for some. */
const Builtin template_methods[] = {
    {"encode", unsupported, "*", 0, TYPE_STRING},
    {"maketrans", unsupported, "*", 1, TYPE_STRING},
    {"translate", unsupported, "*", 2, TYPE_STRING},
    {"as_integer_ratio", unsupported, "*", 3, TYPES_NUMBER},
    {"bit_count", unsupported, "*", 4, TYPES_NUMBER},
    {"conjugate", unsupported, "*", 5, TYPES_NUMBER},
    {"hex", unsupported, "*", 6, TYPES_NUMBER},
    {"to_bytes", unsupported, "*", 7, TYPES_NUMBER},
    {"upper", text_case, "/", CASE_UPPER, TYPE_STRING},
    {"lower", text_case, "/", CASE_LOWER, TYPE_STRING},
    {"title", text_case, "/", CASE_TITLE, TYPE_STRING},
    {"swapcase", text_case, "/", CASE_SWAP, TYPE_STRING},
    {"capitalize", text_case, "/", CASE_CAPITALIZE, TYPE_STRING},
    {"casefold", text_case, "/", CASE_FOLD, TYPE_STRING},
    {"strip", text_trim, "/chars", SIDE_BOTH, TYPE_STRING},
    {"lstrip", text_trim, "/chars", SIDE_LEFT, TYPE_STRING},
    {"rstrip", text_trim, "/chars", SIDE_RIGHT, TYPE_STRING},
    {"split", str_split, "sep maxsplit", SIDE_LEFT, TYPE_STRING},
    {"rsplit", str_split, "sep maxsplit", SIDE_RIGHT, TYPE_STRING},
    {"splitlines", str_splitlines, "keepends", 0, TYPE_STRING},
    {"partition", str_partition, "/!sep", SIDE_LEFT, TYPE_STRING},
    {"rpartition", str_partition, "/!sep", SIDE_RIGHT, TYPE_STRING},
    {"find", str_find, "/!sub start end", 0, TYPE_STRING},
    {"rfind", str_find, "/!sub start end", FIND_LAST, TYPE_STRING},
    {"index", str_find, "/!sub start end", FIND_MUST, TYPE_STRING},
    {"index", list_index, "/!value start end", 0, TYPES_ARRAY},
    {"index", list_index, "/!value", 0, TYPE_RANGE},
    {"rindex", str_find, "/!sub start end", FIND_LAST | FIND_MUST, TYPE_STRING},
    {"count", str_count, "/!sub start end", 0, TYPE_STRING},
    {"count", list_count, "/!value", 0, TYPES_ARRAY | TYPE_RANGE},
    {"startswith", str_affix, "/!prefix start end", SIDE_LEFT, TYPE_STRING},
    {"endswith", str_affix, "/!suffix start end", SIDE_RIGHT, TYPE_STRING},
    {"removeprefix", str_remove, "/!prefix", SIDE_LEFT, TYPE_STRING},
    {"removesuffix", str_remove, "/!suffix", SIDE_RIGHT, TYPE_STRING},
    {"replace", str_replace, "/!old !new count", 0, TYPE_STRING},
    {"join", str_join, "/!iterable", 0, TYPE_STRING},
    {"center", str_pad, "/!width fillchar", SIDE_BOTH, TYPE_STRING},
    {"ljust", str_pad, "/!width fillchar", SIDE_RIGHT, TYPE_STRING},
    {"rjust", str_pad, "/!width fillchar", SIDE_LEFT, TYPE_STRING},
    {"zfill", str_zfill, "/!width", 0, TYPE_STRING},
    {"expandtabs", str_expandtabs, "tabsize", 0, TYPE_STRING},
    {"format", str_format, "*", 0, TYPE_STRING},
    {"format_map", str_format_map, "/!mapping", 0, TYPE_STRING},
    {"isalnum", str_is, "/", CHARS_ALNUM, TYPE_STRING},
    {"isalpha", str_is, "/", CHARS_ALPHA, TYPE_STRING},
    {"isdecimal", str_is, "/", CHARS_DECIMAL, TYPE_STRING},
    {"isdigit", str_is, "/", CHARS_DIGIT, TYPE_STRING},
    {"isnumeric", str_is, "/", CHARS_NUMERIC, TYPE_STRING},
    {"isspace", str_is, "/", CHARS_SPACE, TYPE_STRING},
    {"isascii", str_is, "/", CHARS_ASCII, TYPE_STRING},
    {"isprintable", str_is, "/", CHARS_PRINTABLE, TYPE_STRING},
    {"isidentifier", str_isidentifier, "/", 0, TYPE_STRING},
    {"islower", text_cased, "/", CASE_LOWER, TYPE_STRING},
    {"isupper", text_cased, "/", CASE_UPPER, TYPE_STRING},
    {"istitle", str_istitle, "/", 0, TYPE_STRING},
    {"copy", list_copy, "", 0, TYPE_LIST},
    {"copy", dict_copy, "", 0, TYPE_DICT},
    {"append", NULL, "", 0, TYPE_LIST},
    {"clear", NULL, "", 0, TYPE_LIST | TYPE_DICT},
    {"extend", NULL, "", 0, TYPE_LIST},
    {"insert", NULL, "", 0, TYPE_LIST},
    {"pop", NULL, "", 0, TYPE_LIST | TYPE_DICT},
    {"remove", NULL, "", 0, TYPE_LIST},
    {"reverse", NULL, "", 0, TYPE_LIST},
    {"sort", NULL, "", 0, TYPE_LIST},
    {"popitem", NULL, "", 0, TYPE_DICT},
    {"setdefault", NULL, "", 0, TYPE_DICT},
    {"update", NULL, "", 0, TYPE_DICT},
    {"get", dict_method_get, "/!key default", 0, TYPE_DICT},
    {"keys", dict_view, "", VIEW_KEYS, TYPE_DICT},
    {"values", dict_view, "", VIEW_VALUES, TYPE_DICT},
    {"items", dict_view, "", VIEW_ITEMS, TYPE_DICT},
    {"fromkeys", dict_fromkeys, "/!iterable value", 0, TYPE_DICT},
    {"is_integer", number_is_integer, "", 0, TYPE_FLOAT},
    {"bit_length", number_bit_length, "", 0, TYPES_INTEGRAL},
    {"cycle", loop_cycle, "*", 0, TYPE_LOOP},
    {"changed", loop_changed, "*", 0, TYPE_LOOP},
    {"next", cycler_next, "", 0, TYPE_CYCLER},
    {"reset", cycler_reset, "", 0, TYPE_CYCLER},
    {0},
};
