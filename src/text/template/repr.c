/* Values as text: Python's str() and repr(), and json.dumps. */
#include "text/template/repr.h"

#include "text/template/open.h"
#include "text/template/text.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* d.ddde+x with its last digit one higher; false when that is a 9. */
static bool next_decimal(char *text)
{
    char *last = strchr(text, 'e') - 1;
    if (*last == '9') return false;
    ++*last;
    return true;
}

/* The fewest digits that read back to the same number, as "%.17e" would print them. 15 digits survive a round trip, so
 * the first that reads back is the shortest; not so below the normal range. Below a power of two numbers lie closer than
 * above: the nearest decimal may be too far while the next higher one isn't. */
static void shortest(double number, char *out, size_t size)
{
    for (int precision = fabs(number) < DBL_MIN ? 1 : 15; precision <= 17; precision++) {
        snprintf(out, size, "%.*e", precision - 1, number);
        if (strtod(out, NULL) == number) return;
        if (precision < 17 && next_decimal(out) && strtod(out, NULL) == number) return;
    }
}

/* Python's repr: digits as they are for exponents in -4..15, else scientific. */
void append_float(StrBuf *out, double number)
{
    char text[40], digits[24];
    if (!isfinite(number)) {
        strbuf_puts(out, isnan(number) ? "nan" : number < 0 ? "-inf" : "inf");
        return;
    }
    shortest(number, text, sizeof text);
    int exponent = atoi(strchr(text, 'e') + 1), n = 0;
    for (const char *s = text; *s != 'e'; s++)
        if (*s >= '0' && *s <= '9') digits[n++] = *s;
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = 0;
    if (text[0] == '-') strbuf_putc(out, '-');
    if (exponent < -4 || exponent >= 16) {
        strbuf_printf(out, n > 1 ? "%c.%s" : "%c", digits[0], digits + 1);
        strbuf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        strbuf_puts(out, "0.");
        for (int i = -1; i > exponent; i--) strbuf_putc(out, '0');
        strbuf_puts(out, digits);
    } else {
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1) strbuf_putc(out, '.');
            strbuf_putc(out, i < n ? digits[i] : '0');
        }
        if (n <= exponent + 1) strbuf_puts(out, ".0");
    }
}

void append_escape(StrBuf *out, uint32_t cp)
{
    strbuf_printf(out, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

static void append_repr_text(StrBuf *out, Str text)
{
    char quote = memchr(text.data, '\'', text.len) && !memchr(text.data, '"', text.len) ? '"' : '\'';
    strbuf_putc(out, quote);
    for (size_t pos = 0; pos < text.len;) {
        size_t   begin = pos;
        uint32_t cp = utf8_next(text.data, text.len, &pos);
        if (cp == (uint32_t)quote || cp == '\\') {
            strbuf_printf(out, "\\%c", (char)cp);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            strbuf_puts(out, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
        } else if (cp_is_printable(cp)) {
            strbuf_append(out, text.data + begin, pos - begin);
        } else {
            append_escape(out, cp);
        }
    }
    strbuf_putc(out, quote);
}

static Status append_items(Render *r, StrBuf *out, const Value *items, uint32_t count, int depth)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i) strbuf_puts(out, ", ");
        TRY(value_append_repr(r, out, items[i], depth));
    }
    return OK;
}

static Status append_dict(Render *r, StrBuf *out, const Dict *dict, int depth)
{
    strbuf_putc(out, '{');
    for (uint32_t i = 0; i < dict->count; i++) {
        if (i) strbuf_puts(out, ", ");
        TRY(value_append_repr(r, out, dict->entries[i].key, depth));
        strbuf_puts(out, ": ");
        TRY(value_append_repr(r, out, dict->entries[i].value, depth));
    }
    strbuf_putc(out, '}');
    return OK;
}

static Status append_view(Render *r, StrBuf *out, Value v, int depth)
{
    List list;
    TRY(value_to_list(r, v, &list));
    strbuf_printf(out, "%s([", value_type_name(v));
    TRY(append_items(r, out, list.items, list.count, depth));
    strbuf_puts(out, "])");
    return OK;
}

static Status append_object(Render *r, StrBuf *out, Value v, int depth)
{
    int64_t length;
    switch ((ValueType)v.type) {
    case V_VIEW: return append_view(r, out, v, depth);
    case V_NAMESPACE:
        strbuf_puts(out, "<Namespace ");
        TRY(append_dict(r, out, v.dict, depth));
        strbuf_putc(out, '>');
        return OK;
    case V_LOOP:
        TRY(loop_length(r, v.loop, &length));
        strbuf_printf(out, "<LoopContext %lld/%lld>", (long long)loop_index0(v.loop) + 1, (long long)length);
        return OK;
    case V_MACRO:
        if (v.macro->node->kind == N_MACRO) {
            strbuf_puts(out, "<Macro ");
            append_repr_text(out, r->tmpl->names.names[v.macro->node->name]);
            strbuf_putc(out, '>');
        } else {
            strbuf_puts(out, "<Macro anonymous>");
        }
        return OK;
    case V_RANGE:
        strbuf_printf(out, "range(%lld, %lld", (long long)v.range->start, (long long)v.range->stop);
        if (v.range->step != 1) strbuf_printf(out, ", %lld", (long long)v.range->step);
        strbuf_putc(out, ')');
        return OK;
    default: return render_fail(r, "a %s has no text: it would differ from run to run", value_type_name(v));
    }
}

Status value_append_repr(Render *r, StrBuf *out, Value v, int depth)
{
    if (depth > RENDER_MAX_NESTING) return render_fail(r, "values are nested deeper than %d", RENDER_MAX_NESTING);
    TRY(render_tick(r, 1));
    TRY(text_check(r, out->len > (1 << 20) ? out->len : 0));
    switch ((ValueType)v.type) {
    case V_OPEN: return open_stop(r);
    case V_UNDEFINED: strbuf_puts(out, "Undefined"); return OK;
    case V_NONE: strbuf_puts(out, "None"); return OK;
    case V_BOOL: strbuf_puts(out, v.boolean ? "True" : "False"); return OK;
    case V_INT: strbuf_printf(out, "%lld", (long long)v.integer); return OK;
    case V_FLOAT:
        TRY(check_size(r, v));
        append_float(out, v.number);
        return OK;
    case V_STRING:
        if (v.flags & VALUE_MARKUP) strbuf_puts(out, "Markup(");
        append_repr_text(out, value_str(v));
        if (v.flags & VALUE_MARKUP) strbuf_putc(out, ')');
        return OK;
    case V_LIST:
        strbuf_putc(out, '[');
        TRY(append_items(r, out, v.list->items, v.list->count, depth + 1));
        strbuf_putc(out, ']');
        return OK;
    case V_TUPLE:
        strbuf_putc(out, '(');
        TRY(append_items(r, out, v.list->items, v.list->count, depth + 1));
        strbuf_puts(out, v.list->count == 1 ? ",)" : ")");
        return OK;
    case V_DICT: return append_dict(r, out, v.dict, depth + 1);
    default: return append_object(r, out, v, depth + 1);
    }
}

Status value_append_str(Render *r, StrBuf *out, Value v)
{
    if (v.type == V_STRING) {
        strbuf_append(out, v.text, v.len);
        return OK;
    }
    if (v.type == V_UNDEFINED) return OK;
    return value_append_repr(r, out, v, 0);
}

Status value_to_text(Render *r, Value v, Value *out)
{
    if (v.type == V_STRING) {
        *out = v;
        return OK;
    }
    StrBuf text = { 0 };
    Status status = value_append_str(r, &text, v);
    if (status == OK) return text_finish(r, &text, out);
    strbuf_deinit(&text);
    return status;
}

static void dump_text(StrBuf *out, Str text, bool ascii)
{
    strbuf_reserve(out, text.len + 2);
    strbuf_putc(out, '"');
    size_t plain = 0, pos = 0;
    while (pos < text.len) {
        size_t        begin = pos;
        unsigned char c = (unsigned char)text.data[pos];
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !ascii)) {
            pos++;
            continue;
        }
        strbuf_append(out, text.data + plain, begin - plain);
        uint32_t    cp = utf8_next(text.data, text.len, &pos);
        const char *named = cp ? strchr("\"\"\\\\\nn\rr\tt\bb\ff", (int)cp) : NULL;
        plain = pos;
        if (cp < 0x80 && named) {
            strbuf_printf(out, "\\%c", cp == '"' || cp == '\\' ? (char)cp : named[1]);
        } else if (cp < 0x10000) {
            strbuf_printf(out, "\\u%04x", cp);
        } else {
            strbuf_printf(out, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + ((cp - 0x10000) & 0x3FF));
        }
    }
    strbuf_append(out, text.data + plain, text.len - plain);
    strbuf_putc(out, '"');
}

static void dump_float(StrBuf *out, double number)
{
    if (isfinite(number)) {
        append_float(out, number);
    } else {
        strbuf_puts(out, isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity");
    }
}

static void dump_line(StrBuf *out, const JsonStyle *style, int depth)
{
    if (!style->has_indent) return;
    strbuf_putc(out, '\n');
    for (int i = 0; i < depth; i++) strbuf_append(out, style->indent.data, style->indent.len);
}

static Status dump(Render *r, StrBuf *out, Value v, const JsonStyle *style, int depth);

static Status dump_key(Render *r, StrBuf *out, Value key, const JsonStyle *style)
{
    switch ((ValueType)key.type) {
    case V_STRING: dump_text(out, value_str(key), style->ascii); return OK;
    case V_NONE: strbuf_puts(out, "\"null\""); return OK;
    case V_BOOL: strbuf_puts(out, key.boolean ? "\"true\"" : "\"false\""); return OK;
    case V_INT: strbuf_printf(out, "\"%lld\"", (long long)key.integer); return OK;
    case V_FLOAT:
        strbuf_putc(out, '"');
        dump_float(out, key.number);
        strbuf_putc(out, '"');
        return OK;
    default: return render_fail(r, "tojson: keys must be str, int, float, bool or None, not %s", value_type_name(key));
    }
}

static Status dump_dict(Render *r, StrBuf *out, const Dict *dict, const JsonStyle *style, int depth)
{
    DictEntry *entries = dict->entries;
    if (!dict->count) {
        strbuf_puts(out, "{}");
        return OK;
    }
    if (style->sort_keys) TRY(sort_entries(r, dict, &entries));
    strbuf_putc(out, '{');
    for (uint32_t i = 0; i < dict->count; i++) {
        if (i) strbuf_append(out, style->item_separator.data, style->item_separator.len);
        dump_line(out, style, depth + 1);
        TRY(dump_key(r, out, entries[i].key, style));
        strbuf_append(out, style->key_separator.data, style->key_separator.len);
        TRY(dump(r, out, entries[i].value, style, depth + 1));
    }
    dump_line(out, style, depth);
    strbuf_putc(out, '}');
    return OK;
}

static Status dump_list(Render *r, StrBuf *out, const List *list, const JsonStyle *style, int depth)
{
    if (!list->count) {
        strbuf_puts(out, "[]");
        return OK;
    }
    strbuf_putc(out, '[');
    for (uint32_t i = 0; i < list->count; i++) {
        if (i) strbuf_append(out, style->item_separator.data, style->item_separator.len);
        dump_line(out, style, depth + 1);
        TRY(dump(r, out, list->items[i], style, depth + 1));
    }
    dump_line(out, style, depth);
    strbuf_putc(out, ']');
    return OK;
}

static Status dump(Render *r, StrBuf *out, Value v, const JsonStyle *style, int depth)
{
    if (depth > RENDER_MAX_NESTING) return render_fail(r, "values are nested deeper than %d", RENDER_MAX_NESTING);
    TRY(render_tick(r, 1));
    TRY(text_check(r, out->len > (1 << 20) ? out->len : 0));
    switch ((ValueType)v.type) {
    case V_NONE: strbuf_puts(out, "null"); return OK;
    case V_BOOL: strbuf_puts(out, v.boolean ? "true" : "false"); return OK;
    case V_INT: strbuf_printf(out, "%lld", (long long)v.integer); return OK;
    case V_FLOAT:
        TRY(check_size(r, v));
        dump_float(out, v.number);
        return OK;
    case V_STRING: dump_text(out, value_str(v), style->ascii); return OK;
    case V_LIST:
    case V_TUPLE: return dump_list(r, out, v.list, style, depth);
    case V_DICT: return dump_dict(r, out, v.dict, style, depth);
    default: return render_fail(r, "tojson: object of type %s is not JSON serializable", value_type_name(v));
    }
}

Status value_dump_json(Render *r, Value v, const JsonStyle *style, Value *out)
{
    StrBuf text = { 0 };
    Status status = dump(r, &text, v, style, 0);
    if (status == OK) return text_finish(r, &text, out);
    strbuf_deinit(&text);
    return status;
}
