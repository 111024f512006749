/* Methods of str. The tables of the other types are in template_methods_other.c. */
#include "text/template/methods.h"
#include "text/template/text.h"

#include <string.h>


const char *const template_method_names[METHOD_COUNT] = {
#define METHOD(name) #name,
    TEMPLATE_METHODS(METHOD)
#undef METHOD
};

static Status want_text(Render *r, Value v, const char *what)
{
    if (v.type == V_STRING) return OK;
    return render_fail(r, "%s must be str, not %s", what, value_type_name(v));
}

static Status want_int(Render *r, Value v, const char *what, int64_t *out)
{
    if (value_is_missing(v)) return OK;
    if (!value_is_integral(v)) return render_fail(r, "%s must be an integer, not %s", what, value_type_name(v));
    *out = value_as_int(v);
    return OK;
}

static Value part_of(Value self, size_t begin, size_t len)
{
    Value v = value_text(self.text + begin, len);
    v.flags = self.flags;
    return v;
}

static Status map_case(Render *r, Value self, CaseMap map, Value *out)
{
    StrBuf text = { 0 };
    TRY(text_check(r, self.len));
    text_map_case(&text, value_str(self), map);
    TRY(text_finish(r, &text, out));
    out->flags = self.flags & (VALUE_MARKUP | VALUE_ASCII);
    return OK;
}

#define CASE_METHOD(fn, map)                       \
    METHOD_FN(fn)                                  \
    {                                              \
        UNUSED(argv), UNUSED(args);                \
        return map_case(r, self, map, out);        \
    }
CASE_METHOD(str_upper, CASE_UPPER)
CASE_METHOD(str_lower, CASE_LOWER)
CASE_METHOD(str_title, CASE_TITLE)
CASE_METHOD(str_swapcase, CASE_SWAP)
CASE_METHOD(str_capitalize, CASE_CAPITALIZE)
CASE_METHOD(str_casefold, CASE_FOLD)

static Status strip(Render *r, Value self, Value chars, bool left, bool right, Value *out)
{
    Str result;
    if (value_is_missing(chars) || chars.type == V_NONE) {
        result = text_strip(value_str(self), left, right);
    } else {
        TRY(want_text(r, chars, "the argument of strip"));
        TRY(render_tick(r, (int64_t)self.len * (chars.len + 1) >> 10));
        result = text_strip_chars(value_str(self), value_str(chars), left, right);
    }
    *out = part_of(self, (size_t)(result.data - self.text), result.len);
    return OK;
}
METHOD_FN(str_strip) { UNUSED(args); return strip(r, self, argv[0], true, true, out); }
METHOD_FN(str_lstrip) { UNUSED(args); return strip(r, self, argv[0], true, false, out); }
METHOD_FN(str_rstrip) { UNUSED(args); return strip(r, self, argv[0], false, true, out); }

/* Searching backwards compares at every place: the product bounds it. */
static Status charge_search(Render *r, Str text, Value needle, bool backward)
{
    return render_tick(r, (int64_t)(text.len >> 8) + (backward ? (int64_t)(text.len * needle.len >> 12) : 0));
}

/* ---- splitting ---- */

typedef struct Parts {
    Value   *items;
    uint32_t count, capacity;
} Parts;

static Status add_part(Render *r, Parts *parts, Value part)
{
    if (parts->count == parts->capacity) {
        uint32_t capacity = parts->capacity ? parts->capacity * 2 : 8;
        Value   *items = arena_array(&r->arena, Value, capacity);
        if (parts->count) memcpy(items, parts->items, parts->count * sizeof *items);
        parts->items = items;
        parts->capacity = capacity;
    }
    parts->items[parts->count++] = part;
    return render_tick(r, 1);
}

static void reverse_values(Value *items, uint32_t count)
{
    for (uint32_t i = 0; i < count / 2; i++) {
        Value swap = items[i];
        items[i] = items[count - 1 - i];
        items[count - 1 - i] = swap;
    }
}

static Status split_spaces(Render *r, Value self, int64_t most, Parts *parts)
{
    size_t pos = 0;
    for (;;) {
        Str rest = text_strip((Str){ self.text + pos, self.len - pos }, true, false);
        if (!rest.len) return OK;
        size_t begin = (size_t)(rest.data - self.text), end = begin;
        if (most >= 0 && parts->count >= most) return add_part(r, parts, part_of(self, begin, self.len - begin));
        while (end < self.len) {
            size_t next = end;
            if (cp_is_space(utf8_next(self.text, self.len, &next))) break;
            end = next;
        }
        TRY(add_part(r, parts, part_of(self, begin, end - begin)));
        pos = end;
    }
}

static Status rsplit_spaces(Render *r, Value self, int64_t most, Parts *parts)
{
    size_t end = self.len;
    for (;;) {
        size_t stop = text_strip((Str){ self.text, end }, false, true).len, begin = stop;
        if (!stop) return OK;
        if (most >= 0 && parts->count >= most) return add_part(r, parts, part_of(self, 0, stop));
        while (begin > 0) {
            size_t before = begin - 1;
            while (before > 0 && ((unsigned char)self.text[before] & 0xC0) == 0x80) before--;
            size_t next = before;
            if (cp_is_space(utf8_next(self.text, self.len, &next))) break;
            begin = before;
        }
        TRY(add_part(r, parts, part_of(self, begin, stop - begin)));
        end = begin;
    }
}

static Status split(Render *r, Value self, const Value *argv, bool right, Value *out)
{
    Parts   parts = { 0 };
    int64_t most = -1;
    Value   sep = argv[0];
    TRY(want_int(r, argv[1], "maxsplit", &most));
    TRY(render_tick(r, self.len >> 8));
    if (value_is_missing(sep) || sep.type == V_NONE) {
        TRY(right ? rsplit_spaces(r, self, most, &parts) : split_spaces(r, self, most, &parts));
    } else {
        TRY(want_text(r, sep, "the separator"));
        if (!sep.len) return render_fail(r, "empty separator");
        TRY(charge_search(r, value_str(self), sep, right));
        size_t begin = 0, end = self.len;
        while (most < 0 || parts.count < most) {
            Str    rest = { self.text + begin, end - begin };
            size_t hit = right ? text_find_last(rest, value_str(sep)) : text_find(rest, value_str(sep), 0);
            if (hit == SIZE_MAX) break;
            if (right) {
                TRY(add_part(r, &parts, part_of(self, hit + sep.len, end - hit - sep.len)));
                end = hit;
            } else {
                TRY(add_part(r, &parts, part_of(self, begin, hit)));
                begin += hit + sep.len;
            }
        }
        TRY(add_part(r, &parts, part_of(self, begin, end - begin)));
    }
    if (right) reverse_values(parts.items, parts.count);
    *out = value_list(r, V_LIST, parts.items, parts.count);
    return OK;
}
METHOD_FN(str_split) { UNUSED(args); return split(r, self, argv, false, out); }
METHOD_FN(str_rsplit) { UNUSED(args); return split(r, self, argv, true, out); }

static bool is_line_break(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

METHOD_FN(str_splitlines)
{
    Parts parts = { 0 };
    bool  keep = false;
    UNUSED(args);
    TRY(render_tick(r, self.len >> 8));
    if (!value_is_missing(argv[0])) TRY(value_truth(r, argv[0], &keep));
    for (size_t begin = 0; begin < self.len;) {
        size_t end = begin, next = begin;
        while (end < self.len) {
            uint32_t cp = utf8_next(self.text, self.len, &next);
            if (is_line_break(cp)) {
                if (cp == '\r' && next < self.len && self.text[next] == '\n') next++;
                break;
            }
            end = next;
        }
        TRY(add_part(r, &parts, part_of(self, begin, (keep ? next : end) - begin)));
        begin = next;
    }
    *out = value_list(r, V_LIST, parts.items, parts.count);
    return OK;
}

static Status partition(Render *r, Value self, Value sep, bool right, Value *out)
{
    TRY(want_text(r, sep, "the separator"));
    if (!sep.len) return render_fail(r, "empty separator");
    TRY(charge_search(r, value_str(self), sep, right));
    size_t hit = right ? text_find_last(value_str(self), value_str(sep)) : text_find(value_str(self), value_str(sep), 0);
    Value *items = arena_array(&r->arena, Value, 3);
    if (hit == SIZE_MAX) {
        items[0] = items[1] = items[2] = part_of(self, 0, 0);
        items[right ? 2 : 0] = self;
    } else {
        items[0] = part_of(self, 0, hit);
        items[1] = part_of(self, hit, sep.len);
        items[2] = part_of(self, hit + sep.len, self.len - hit - sep.len);
    }
    *out = value_list(r, V_TUPLE, items, 3);
    return OK;
}
METHOD_FN(str_partition) { UNUSED(args); return partition(r, self, argv[0], false, out); }
METHOD_FN(str_rpartition) { UNUSED(args); return partition(r, self, argv[0], true, out); }

/* ---- searching; `start` and `end` count characters as in a slice ---- */

static Status window(Render *r, Value self, const Value *argv, Str *out, int64_t *out_start, bool *out_valid)
{
    int64_t start = 0, end, length;
    TRY(value_length(r, self, &length));
    end = length;
    if (!value_is_missing(argv[1]) && argv[1].type != V_NONE) TRY(want_int(r, argv[1], "start", &start));
    if (!value_is_missing(argv[2]) && argv[2].type != V_NONE) TRY(want_int(r, argv[2], "end", &end));
    if (end > length) end = length;
    if (end < 0) end = end < -length ? 0 : end + length;
    if (start < 0) start = start < -length ? 0 : start + length;
    *out_valid = start <= end && start <= length;
    *out_start = start;
    if (!*out_valid) return OK;
    size_t begin = utf8_offset(self.text, self.len, (size_t)start);
    *out = (Str){ self.text + begin, utf8_offset(self.text + begin, self.len - begin, (size_t)(end - start)) };
    return render_tick(r, self.len >> 8);
}

static Status find(Render *r, Value self, const Value *argv, bool last, bool must, Value *out)
{
    Str     text;
    int64_t start;
    bool    valid;
    size_t  hit = SIZE_MAX;
    TRY(want_text(r, argv[0], "the text to find"));
    TRY(window(r, self, argv, &text, &start, &valid));
    if (valid) TRY(charge_search(r, text, argv[0], last));
    if (valid) hit = last ? text_find_last(text, value_str(argv[0])) : text_find(text, value_str(argv[0]), 0);
    if (hit == SIZE_MAX && must) return render_fail(r, "substring not found");
    *out = value_int(hit == SIZE_MAX ? -1 : start + (int64_t)utf8_count(text.data, hit));
    return OK;
}
METHOD_FN(str_find) { UNUSED(args); return find(r, self, argv, false, false, out); }
METHOD_FN(str_rfind) { UNUSED(args); return find(r, self, argv, true, false, out); }
METHOD_FN(str_index) { UNUSED(args); return find(r, self, argv, false, true, out); }
METHOD_FN(str_rindex) { UNUSED(args); return find(r, self, argv, true, true, out); }

METHOD_FN(str_count)
{
    Str     text;
    int64_t start, count = 0;
    bool    valid;
    UNUSED(args);
    TRY(want_text(r, argv[0], "the text to count"));
    TRY(window(r, self, argv, &text, &start, &valid));
    if (valid && !argv[0].len) count = (int64_t)utf8_count(text.data, text.len) + 1;
    for (size_t at = 0; valid && argv[0].len && (at = text_find(text, value_str(argv[0]), at)) != SIZE_MAX; at += argv[0].len) count++;
    *out = value_int(count);
    return OK;
}

static bool has_affix(Str text, Value affix, bool at_end)
{
    if (affix.len > text.len) return false;
    return affix.len == 0 || memcmp(text.data + (at_end ? text.len - affix.len : 0), affix.text, affix.len) == 0;
}

static Status affix(Render *r, Value self, const Value *argv, bool at_end, Value *out)
{
    Str     text;
    int64_t start;
    bool    valid, found = false;
    List    list = { (Value *)argv, 1 };
    if (argv[0].type == V_TUPLE) list = *argv[0].list;
    TRY(window(r, self, argv, &text, &start, &valid));
    for (uint32_t i = 0; i < list.count && !found; i++) {
        TRY(want_text(r, list.items[i], "a prefix or suffix"));
        found = valid && has_affix(text, list.items[i], at_end);
    }
    *out = value_bool(found);
    return OK;
}
METHOD_FN(str_startswith) { UNUSED(args); return affix(r, self, argv, false, out); }
METHOD_FN(str_endswith) { UNUSED(args); return affix(r, self, argv, true, out); }

METHOD_FN(str_removeprefix)
{
    UNUSED(args);
    TRY(want_text(r, argv[0], "the prefix"));
    *out = has_affix(value_str(self), argv[0], false) ? part_of(self, argv[0].len, self.len - argv[0].len) : self;
    return OK;
}

METHOD_FN(str_removesuffix)
{
    UNUSED(args);
    TRY(want_text(r, argv[0], "the suffix"));
    *out = has_affix(value_str(self), argv[0], true) ? part_of(self, 0, self.len - argv[0].len) : self;
    return OK;
}

/* ---- building ---- */

METHOD_FN(str_replace)
{
    int64_t most = -1, done = 0;
    StrBuf  text = { 0 };
    Status  status = OK;
    Value   new_text = argv[1];
    UNUSED(args);
    TRY(want_text(r, argv[0], "replace: the old text"));
    TRY(want_text(r, new_text, "replace: the new text"));
    if (self.flags & VALUE_MARKUP) TRY(value_to_markup(r, new_text, &new_text));
    TRY(want_int(r, argv[2], "replace: the count", &most));
    TRY(render_tick(r, self.len >> 8));
    Str    old = value_str(argv[0]);
    size_t pos = 0;
    while (status == OK && (most < 0 || done < most)) {
        size_t hit = text_find(value_str(self), old, pos);
        if (hit == SIZE_MAX) break;
        strbuf_append(&text, self.text + pos, hit - pos);
        strbuf_append(&text, new_text.text, new_text.len);
        pos = hit + old.len;
        done++;
        if ((done & 1023) == 0) status = text_check(r, text.len);
        if (old.len) continue;
        if (pos >= self.len) break;
        size_t next = pos;
        utf8_next(self.text, self.len, &next);
        strbuf_append(&text, self.text + pos, next - pos);
        pos = next;
    }
    if (status != OK) {
        strbuf_deinit(&text);
        return status;
    }
    if (!done) {
        strbuf_deinit(&text);
        *out = self;
        return OK;
    }
    strbuf_append(&text, self.text + pos, self.len - pos);
    return text_finish(r, &text, out);
}

METHOD_FN(str_join)
{
    StrBuf   text = { 0 };
    Iterator it;
    Status   status;
    UNUSED(args);
    TRY(iterator_init(r, &it, argv[0]));
    for (int64_t i = 0;; i++) {
        bool  done;
        Value item;
        status = iterator_next(r, &it, &item, &done);
        if (status != OK || done) break;
        if (i) strbuf_append(&text, self.text, self.len);
        status = self.flags & VALUE_MARKUP ? value_to_markup(r, item, &item) : want_text(r, item, "an item to join");
        if (status == OK) strbuf_append(&text, item.text, item.len);
        if (status == OK && (i & 63) == 0) status = text_check(r, text.len);
        if (status != OK) break;
    }
    if (status == OK) return text_finish(r, &text, out);
    strbuf_deinit(&text);
    return status;
}

static Status pad(Render *r, Value self, const Value *argv, int side, Value *out)
{
    int64_t width = 0, length;
    Value   fill = value_is_missing(argv[1]) ? value_text(" ", 1) : argv[1];
    TRY(want_int(r, argv[0], "the width", &width));
    TRY(want_text(r, fill, "the fill character"));
    if (self.flags & VALUE_MARKUP) TRY(value_to_markup(r, fill, &fill));
    if (utf8_count(fill.text, fill.len) != 1) return render_fail(r, "the fill character must be exactly one character long");
    TRY(value_length(r, self, &length));
    if (width <= length) {
        *out = self;
        return OK;
    }
    if (width > RENDER_MAX_TEXT_BYTES) return text_check(r, (size_t)width);
    int64_t margin = width - length, left = side < 0 ? 0 : side > 0 ? margin : margin / 2 + (margin & width & 1);
    TRY(text_check(r, self.len + (size_t)margin * fill.len));
    StrBuf text = { 0 };
    for (int64_t i = 0; i < left; i++) strbuf_append(&text, fill.text, fill.len);
    strbuf_append(&text, self.text, self.len);
    for (int64_t i = left; i < margin; i++) strbuf_append(&text, fill.text, fill.len);
    return text_finish(r, &text, out);
}
METHOD_FN(str_center) { UNUSED(args); return pad(r, self, argv, 0, out); }
METHOD_FN(str_ljust) { UNUSED(args); return pad(r, self, argv, -1, out); }
METHOD_FN(str_rjust) { UNUSED(args); return pad(r, self, argv, 1, out); }

METHOD_FN(str_zfill)
{
    int64_t width = 0, length;
    UNUSED(args);
    TRY(want_int(r, argv[0], "the width", &width));
    TRY(value_length(r, self, &length));
    *out = self;
    if (width <= length) return OK;
    TRY(text_check(r, (size_t)width));
    StrBuf text = { 0 };
    size_t sign = self.len && (self.text[0] == '+' || self.text[0] == '-');
    strbuf_append(&text, self.text, sign);
    for (int64_t i = length; i < width; i++) strbuf_putc(&text, '0');
    strbuf_append(&text, self.text + sign, self.len - sign);
    return text_finish(r, &text, out);
}

METHOD_FN(str_expandtabs)
{
    int64_t size = 8, column = 0;
    StrBuf  text = { 0 };
    UNUSED(args);
    TRY(want_int(r, argv[0], "the tab size", &size));
    if (size > 1000) return render_fail(r, "expandtabs: a tab size beyond 1000 is not supported");
    for (size_t pos = 0; pos < self.len; ) {
        size_t begin = pos;
        uint32_t cp = utf8_next(self.text, self.len, &pos);
        if (cp == '\t') {
            for (int64_t n = size > 0 ? size - column % size : 0; n > 0; n--, column++) strbuf_putc(&text, ' ');
            continue;
        }
        strbuf_append(&text, self.text + begin, pos - begin);
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
    }
    return text_finish(r, &text, out);
}

METHOD_FN(str_format) { UNUSED(argv); return format_braces(r, self, args, out); }

METHOD_FN(str_format_map)
{
    UNUSED(args);
    if (argv[0].type != V_DICT) return render_fail(r, "format_map takes a dict");
    Keyword *keywords = arena_array(&r->arena, Keyword, argv[0].dict->count);
    Args     spread = { NULL, 0, keywords, 0 };
    for (uint32_t i = 0; i < argv[0].dict->count; i++)
        if (argv[0].dict->entries[i].key.type == V_STRING)
            keywords[spread.num_keywords++] =
                (Keyword){ value_str(argv[0].dict->entries[i].key), argv[0].dict->entries[i].value };
    return format_braces(r, self, &spread, out);
}

/* ---- tests of all characters ---- */

static Status all_chars(Render *r, Value self, bool (*test)(uint32_t), bool of_empty, Value *out)
{
    bool all = self.len ? true : of_empty;
    TRY(render_tick(r, self.len >> 8));
    for (size_t pos = 0; all && pos < self.len;) all = test(utf8_next(self.text, self.len, &pos));
    *out = value_bool(all);
    return OK;
}
static bool cp_is_ascii(uint32_t cp) { return cp < 0x80; }

#define CHARS_METHOD(fn, test, of_empty)                       \
    METHOD_FN(fn)                                              \
    {                                                          \
        UNUSED(argv), UNUSED(args);                            \
        return all_chars(r, self, test, of_empty, out);        \
    }
CHARS_METHOD(str_isalnum, cp_is_alnum, false)
CHARS_METHOD(str_isalpha, cp_is_alpha, false)
CHARS_METHOD(str_isascii, cp_is_ascii, true)
CHARS_METHOD(str_isdecimal, cp_is_decimal, false)
CHARS_METHOD(str_isdigit, cp_is_digit, false)
CHARS_METHOD(str_isnumeric, cp_is_numeric, false)
CHARS_METHOD(str_isprintable, cp_is_printable, true)
CHARS_METHOD(str_isspace, cp_is_space, false)

METHOD_FN(str_isidentifier)
{
    bool all = self.len > 0;
    UNUSED(argv), UNUSED(args), UNUSED(r);
    for (size_t pos = 0; all && pos < self.len;) {
        bool first = pos == 0;
        all = cp_is_identifier(utf8_next(self.text, self.len, &pos), first);
    }
    *out = value_bool(all);
    return OK;
}

/* islower: some cased letter, none of the other case. */
static Value all_cased(Value self, bool lower)
{
    bool cased = false;
    for (size_t pos = 0; pos < self.len;) {
        uint32_t cp = utf8_next(self.text, self.len, &pos);
        if (cp_is_title(cp) || (lower ? cp_is_upper(cp) : cp_is_lower(cp))) return value_bool(false);
        cased |= lower ? cp_is_lower(cp) : cp_is_upper(cp);
    }
    return value_bool(cased);
}
METHOD_FN(str_islower) { UNUSED(argv), UNUSED(args); *out = all_cased(self, true); return render_tick(r, self.len >> 8); }
METHOD_FN(str_isupper) { UNUSED(argv), UNUSED(args); *out = all_cased(self, false); return render_tick(r, self.len >> 8); }

METHOD_FN(str_istitle)
{
    bool cased = false, previous = false, ok = true;
    UNUSED(argv), UNUSED(args), UNUSED(r);
    for (size_t pos = 0; ok && pos < self.len;) {
        uint32_t cp = utf8_next(self.text, self.len, &pos);
        bool     capital = cp_is_upper(cp) || cp_is_title(cp), small = cp_is_lower(cp);
        if ((capital && previous) || (small && !previous)) ok = false;
        previous = capital || small;
        cased |= previous;
    }
    *out = value_bool(ok && cased);
    return OK;
}

METHOD_UNSUPPORTED(encode)
METHOD_UNSUPPORTED(maketrans)
METHOD_UNSUPPORTED(translate)

/* STR: its parameters have no names, as in Python. */
#define STR(name, params) [M_##name] = { #name, str_##name, "/" params }
#define STR_NAMED(name, params) [M_##name] = { #name, str_##name, params }
const MethodTable template_text_methods = { .methods = {
    STR(upper, ""), STR(lower, ""), STR(title, ""), STR(swapcase, ""), STR(capitalize, ""), STR(casefold, ""),
    STR(strip, "chars"), STR(lstrip, "chars"), STR(rstrip, "chars"), STR_NAMED(split, "sep maxsplit"),
    STR_NAMED(rsplit, "sep maxsplit"), STR_NAMED(splitlines, "keepends"), STR(partition, "!sep"), STR(rpartition, "!sep"),
    STR(find, "!sub start end"), STR(rfind, "!sub start end"), STR(index, "!sub start end"), STR(rindex, "!sub start end"),
    STR(count, "!sub start end"), STR(startswith, "!prefix start end"), STR(endswith, "!suffix start end"),
    STR(removeprefix, "!prefix"), STR(removesuffix, "!suffix"), STR(replace, "!old !new count"), STR(join, "!iterable"),
    STR(center, "!width fillchar"), STR(ljust, "!width fillchar"), STR(rjust, "!width fillchar"), STR(zfill, "!width"),
    STR_NAMED(expandtabs, "tabsize"), STR_NAMED(format, "*"), STR(format_map, "!mapping"), STR(isalnum, ""), STR(isalpha, ""),
    STR(isascii, ""), STR(isdecimal, ""), STR(isdigit, ""), STR(isnumeric, ""), STR(isprintable, ""), STR(isspace, ""),
    STR(isidentifier, ""), STR(islower, ""), STR(isupper, ""), STR(istitle, ""),
    UNSUPPORTED(encode), UNSUPPORTED(maketrans), UNSUPPORTED(translate),
} };
