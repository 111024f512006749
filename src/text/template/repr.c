/* Converts values to text: Python's str() and repr(), and json.dumps. The text is built at the end of r->out. */
#include "text/template/open.h"
#include "text/template/render.h"
#include "text/template/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Appends a backslash, a letter and hexadecimal digits. */
static void print_hex(Render *r, char letter, uint32_t code, int digits)
{
    strbuf_putc(&r->out, '\\');
    strbuf_putc(&r->out, letter);
    while (digits-- > 0) strbuf_putc(&r->out, "0123456789abcdef"[code >> (4 * digits) & 15]);
}

static void print_repr_text(Render *r, Str text)
{
    char quote = memchr(text.data, '\'', text.len) && !memchr(text.data, '"', text.len) ? '"' : '\'';
    strbuf_putc(&r->out, quote);
    for (size_t pos = 0, begin = 0; pos < text.len; begin = pos) {
        uint32_t cp = utf8_next(text, &pos);
        if (cp == (uint32_t)quote || cp == '\\') {
            strbuf_printf(&r->out, "\\%c", (char)cp);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            strbuf_puts(&r->out, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
        } else if (cp_is_printable(cp)) {
            strbuf_append(&r->out, text.data + begin, pos - begin);
        } else {
            print_hex(r, cp < 0x100 ? 'x' : cp < 0x10000 ? 'u' : 'U', cp, cp < 0x100 ? 2 : cp < 0x10000 ? 4 : 8);
        }
    }
    strbuf_putc(&r->out, quote);
}

static void print_json_code(Render *r, uint32_t cp)
{
    static const char named[] = "\"\"\\\\\nn\rr\tt\bb\ff"; /* pairs: a character and the letter of its escape */
    const char       *name = cp && cp < 0x80 ? strchr(named, (int)cp) : NULL;
    if (name) {
        strbuf_putc(&r->out, '\\');
        strbuf_putc(&r->out, named[(name - named) | 1]);
    } else if (cp < 0x10000) {
        print_hex(r, 'u', cp, 4);
    } else {
        print_hex(r, 'u', 0xD800 + ((cp - 0x10000) >> 10), 4);
        print_hex(r, 'u', 0xDC00 + ((cp - 0x10000) & 0x3FF), 4);
    }
}

static void print_json_text(Render *r, Str text, bool ascii)
{
    size_t plain = 0, pos = 0;
    strbuf_putc(&r->out, '"');
    while (pos < text.len) {
        unsigned char c = (unsigned char)text.data[pos];
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !ascii)) {
            pos++;
            continue;
        }
        strbuf_append(&r->out, text.data + plain, pos - plain);
        print_json_code(r, utf8_next(text, &pos));
        plain = pos;
    }
    strbuf_append(&r->out, text.data + plain, text.len - plain);
    strbuf_putc(&r->out, '"');
}

const TextStyle repr_style = {.item_separator = {", ", 2}, .key_separator = {": ", 2}};

static void print_any(Render *r, Value v, const TextStyle *style, int depth);

/* Appends the separator; with indentation also a newline and `depth` indents. */
static void print_break(Render *r, const TextStyle *style, Str separator, int depth)
{
    strbuf_append(&r->out, separator.data, separator.len);
    if (!style->has_indent) return;
    strbuf_putc(&r->out, '\n');
    for (int i = 0; i < depth; i++) {
        strbuf_append(&r->out, style->indent.data, style->indent.len);
        text_fits(r);
    }
}

static void print_items(Render *r, const List *list, const TextStyle *style, int depth)
{
    for (uint32_t i = 0; i < list->count; i++) {
        print_break(r, style, i ? style->item_separator : (Str){"", 0}, depth);
        print_any(r, list->items[i], style, depth);
    }
    if (list->count) print_break(r, style, (Str){"", 0}, depth - 1);
}

static void print_json_key(Render *r, Value key, const TextStyle *style)
{
    if (key.type == V_STRING) {
        print_any(r, key, style, 0);
        return;
    }
    if (key.type != V_NONE && !value_is(key, TYPES_NUMBER))
        render_fail(r, "tojson: keys must be str, int, float, bool or None, not %s", value_type_name(key));
    strbuf_putc(&r->out, '"');
    print_any(r, key, style, 0);
    strbuf_putc(&r->out, '"');
}

static void print_dict(Render *r, const Dict *dict, const TextStyle *style, int depth)
{
    render_looks_at(r, dict, (Str){0});
    Value *order = NULL, *keys = arena_array(&r->arena, Value, style->sort_keys ? 2 * (size_t)dict->count : 0);
    for (uint32_t i = 0; style->sort_keys && i < dict->count; i++) {
        order = keys + dict->count;
        keys[i] = dict->entries[i].key;
        order[i] = value_int(i);
    }
    if (order) sort_values(r, order, keys, dict->count, false);
    strbuf_putc(&r->out, '{');
    for (uint32_t i = 0; i < dict->count; i++) {
        const DictEntry *entry = &dict->entries[order ? order[i].integer : i];
        print_break(r, style, i ? style->item_separator : (Str){"", 0}, depth);
        if (style->is_json)
            print_json_key(r, entry->key, style);
        else
            print_any(r, entry->key, style, depth);
        strbuf_append(&r->out, style->key_separator.data, style->key_separator.len);
        print_any(r, entry->value, style, depth);
    }
    if (dict->count) print_break(r, style, (Str){"", 0}, depth - 1);
    strbuf_putc(&r->out, '}');
}

static void print_text(Render *r, Value v, const TextStyle *style)
{
    render_tick_chars(r, v.len);
    if (style->is_json) {
        print_json_text(r, value_str(v), style->ascii);
        return;
    }
    if (v.flags & VALUE_MARKUP) strbuf_puts(&r->out, "Markup(");
    print_repr_text(r, value_str(v));
    if (v.flags & VALUE_MARKUP) strbuf_putc(&r->out, ')');
}

static void print_number(Render *r, Value v, bool is_json)
{
    check_size(r, v);
    render_tick(r, v.type == V_INT ? 1 : 8);
    if (v.type == V_INT)
        strbuf_printf(&r->out, "%lld", (long long)v.integer);
    else if (isfinite(v.number))
        json_write_double(&r->out, v.number);
    else if (is_json)
        strbuf_puts(&r->out, isnan(v.number) ? "NaN" : v.number < 0 ? "-Infinity" : "Infinity");
    else
        strbuf_puts(&r->out, isnan(v.number) ? "nan" : v.number < 0 ? "-inf" : "inf");
}

static void print_any(Render *r, Value v, const TextStyle *style, int depth)
{
    bool is_json = style->is_json;
    if (depth > RENDER_MAX_NESTING) render_fail(r, "values are nested deeper than %d", RENDER_MAX_NESTING);
    render_tick(r, 1);
    text_fits(r);
    switch ((ValueType)v.type) {
    case V_NONE:
        strbuf_puts(&r->out, is_json ? "null" : "None");
        break;
    case V_BOOL:
        strbuf_puts(&r->out, is_json ? (v.boolean ? "true" : "false") : v.boolean ? "True" : "False");
        break;
    case V_INT:
    case V_FLOAT:
        print_number(r, v, is_json);
        break;
    case V_STRING:
        print_text(r, v, style);
        break;
    case V_LIST:
    case V_TUPLE: {
        bool is_tuple = v.type == V_TUPLE && !is_json;
        strbuf_putc(&r->out, is_tuple ? '(' : '[');
        print_items(r, v.list, style, depth + 1);
        strbuf_puts(&r->out, !is_tuple ? "]" : v.list->count == 1 ? ",)" : ")");
        break;
    }
    case V_DICT:
        print_dict(r, v.dict, style, depth + 1);
        break;
    default:
        if (is_json) render_fail(r, "tojson: object of type %s is not JSON serializable", value_type_name(v));
        if (v.type == V_OPEN) open_stop(r);
        if (v.type != V_UNDEFINED) render_fail(r, "a %s has no text; |list gives one where it can be iterated", value_type_name(v));
        strbuf_puts(&r->out, "Undefined");
    }
}

void print_value(Render *r, Value v, const TextStyle *style)
{
    print_any(r, v, style, 0);
}

void print_str(Render *r, Value v)
{
    if (v.type == V_STRING)
        strbuf_append(&r->out, v.text, v.len);
    else if (v.type != V_UNDEFINED)
        print_any(r, v, &repr_style, 0);
}

Value value_to_text(Render *r, Value v)
{
    if (v.type == V_STRING) return v;
    size_t begin = r->out.len;
    print_str(r, v);
    return text_take(r, begin);
}

Value value_repr(Render *r, Value v)
{
    size_t begin = r->out.len;
    print_value(r, v, &repr_style);
    return text_take(r, begin);
}

Value value_to_markup(Render *r, Value v)
{
    static const char        specials[] = "&<>\"'";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    size_t                   begin = r->out.len;
    v = value_to_text(r, v);
    if (v.flags & VALUE_MARKUP) return v;
    for (size_t i = 0; i < v.len; i++) {
        const char *special = v.text[i] ? strchr(specials, v.text[i]) : NULL;
        if (special)
            strbuf_puts(&r->out, entities[special - specials]);
        else
            strbuf_putc(&r->out, v.text[i]);
    }
    v = text_take(r, begin);
    v.flags |= VALUE_MARKUP;
    return v;
}
