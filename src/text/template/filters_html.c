/* Filters that know of HTML and addresses: striptags, urlencode, xmlattr. */
#include "text/template/filters.h"
#include "text/template/text.h"

#include <string.h>

/* ---- striptags ---- */

/* Comments and tags out, up to one that doesn't end, and runs of white space to one space, none at the ends. */
static void strip_tags(Render *r, Str text)
{
    size_t begin = r->out.len;
    bool   space = false, has_end = true;
    for (size_t pos = 0; pos < text.len;) {
        size_t next = pos, end = SIZE_MAX;
        if (text.data[pos] == '<' && has_end) {
            bool comment = text.len - pos >= 4 && memcmp(text.data + pos, "<!--", 4) == 0;
            end = comment ? text_find(text, str_of("-->"), pos + 4) : text_find(text, str_of(">"), pos);
            has_end = end != SIZE_MAX;
            if (has_end) end += comment ? 3 : 1;
        }
        bool is_space = cp_is_space(utf8_next(text, &next));
        if (end != SIZE_MAX) {
            next = end;
        } else if (is_space) {
            space = r->out.len > begin;
        } else {
            if (space) strbuf_putc(&r->out, ' ');
            space = false;
            strbuf_append(&r->out, text.data + pos, next - pos);
        }
        pos = next;
    }
}

/* Entities that may lack their semicolon; from nbsp on in the order of Latin-1, from U+00A0. */
static const char *const entities[] = {
    "AMP",    "LT",     "GT",     "QUOT",   "COPY",   "REG",    "amp",    "lt",     "gt",     "quot",   "nbsp",   "iexcl",
    "cent",   "pound",  "curren", "yen",    "brvbar", "sect",   "uml",    "copy",   "ordf",   "laquo",  "not",    "shy",
    "reg",    "macr",   "deg",    "plusmn", "sup2",   "sup3",   "acute",  "micro",  "para",   "middot", "cedil",  "sup1",
    "ordm",   "raquo",  "frac14", "frac12", "frac34", "iquest", "Agrave", "Aacute", "Acirc",  "Atilde", "Auml",   "Aring",
    "AElig",  "Ccedil", "Egrave", "Eacute", "Ecirc",  "Euml",   "Igrave", "Iacute", "Icirc",  "Iuml",   "ETH",    "Ntilde",
    "Ograve", "Oacute", "Ocirc",  "Otilde", "Ouml",   "times",  "Oslash", "Ugrave", "Uacute", "Ucirc",  "Uuml",   "Yacute",
    "THORN",  "szlig",  "agrave", "aacute", "acirc",  "atilde", "auml",   "aring",  "aelig",  "ccedil", "egrave", "eacute",
    "ecirc",  "euml",   "igrave", "iacute", "icirc",  "iuml",   "eth",    "ntilde", "ograve", "oacute", "ocirc",  "otilde",
    "ouml",   "divide", "oslash", "ugrave", "uacute", "ucirc",  "uuml",   "yacute", "thorn",  "yuml",
};
enum { NUM_ENTITIES = sizeof entities / sizeof entities[0], FIRST_LATIN = 10, MAX_ENTITY = 32 };

static uint32_t entity_cp(size_t index)
{
    static const uint32_t first[FIRST_LATIN] = {'&', '<', '>', '"', 0xA9, 0xAE, '&', '<', '>', '"'};
    return index < FIRST_LATIN ? first[index] : 0xA0 + (uint32_t)(index - FIRST_LATIN);
}

/* Bytes of "#123;", "#x7B" and the like at text, or 0; the character, or 0 for none. */
static size_t number_entity(Str text, uint32_t *out)
{
    static const uint16_t windows[] = {
        0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021, 0x2C6, 0x2030, 0x160, 0x2039, 0x152, 0x8D, 0x17D, 0x8F,
        0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014, 0x2DC, 0x2122, 0x161, 0x203A, 0x153, 0x9D, 0x17E, 0x178,
    };
    bool     hex = text.len > 1 && (text.data[1] | 32) == 'x';
    size_t   begin = hex ? 2 : 1, pos = begin;
    uint32_t cp = 0;
    for (; pos < text.len; pos++) {
        char c = text.data[pos], letter = (char)(c | 32);
        int  digit = c >= '0' && c <= '9' ? c - '0' : hex && letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
        if (digit < 0) break;
        if (cp <= 0x10FFFF) cp = cp * (hex ? 16 : 10) + (uint32_t)digit;
    }
    if (pos == begin) return 0;
    bool control = cp < 0x20 && cp != '\t' && cp != '\n' && cp != '\f' && cp != '\r';
    *out = cp;
    if (cp == 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        *out = 0xFFFD;
    else if (cp >= 0x80 && cp <= 0x9F)
        *out = windows[cp - 0x80];
    else if (control || cp == 0x7F || (cp & 0xFFFE) == 0xFFFE || (cp >= 0xFDD0 && cp <= 0xFDEF))
        *out = 0;
    return pos + (pos < text.len && text.data[pos] == ';');
}

/* Bytes of the entity's name at text with its semicolon, or 0; the character. Of names without one the longest counts. */
static size_t named_entity(Render *r, Str text, uint32_t *out)
{
    size_t end = 0, len = 0;
    while (end < text.len && end < MAX_ENTITY && !strchr("\t\n\f <&#;", text.data[end])) end++;
    bool is_closed = end && end < text.len && text.data[end] == ';';
    if (is_closed && str_equal((Str){text.data, end}, "apos")) {
        *out = '\'';
        return end + 1;
    }
    for (size_t i = 0; i < NUM_ENTITIES; i++) {
        size_t n = strlen(entities[i]);
        if (n > end || n < len || memcmp(text.data, entities[i], n) != 0) continue;
        *out = entity_cp(i);
        len = n;
    }
    if (is_closed && len != end) render_fail(r, "the entity '&%.*s;' is not supported", (int)end, text.data);
    return len + is_closed;
}

static void unescape(Render *r, Str text)
{
    for (size_t pos = 0; pos < text.len;) {
        Str      rest = {text.data + pos + 1, text.len - pos - 1};
        uint32_t cp = 0;
        size_t   len = 0;
        char     bytes[4];
        if (text.data[pos] == '&' && rest.len) len = rest.data[0] == '#' ? number_entity(rest, &cp) : named_entity(r, rest, &cp);
        if (!len)
            strbuf_putc(&r->out, text.data[pos]);
        else if (cp)
            strbuf_append(&r->out, bytes, utf8_encode(cp, bytes));
        pos += len + 1;
    }
}

Value filter_striptags(Render *r, const Call *c)
{
    Value  text = value_to_text(r, c->self);
    size_t begin = r->out.len;
    text_check(r, text.len);
    strip_tags(r, value_str(text));
    text = text_take(r, begin);
    unescape(r, value_str(text));
    return text_take(r, begin);
}

/* ---- urlencode, xmlattr ---- */

static void quote_url(Render *r, Value v, bool is_query)
{
    Str text = value_str(value_to_text(r, v));
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if ((c < 0x80 && cp_is_alnum(c)) || (c && strchr("_.-~", c)) || (c == '/' && !is_query))
            strbuf_putc(&r->out, (char)c);
        else if (c == ' ' && is_query)
            strbuf_putc(&r->out, '+');
        else
            strbuf_printf(&r->out, "%%%02X", c);
    }
    text_fits(r);
}

Value filter_urlencode(Render *r, const Call *c)
{
    Value  pairs = c->self.type == V_DICT ? value_view(r, c->self.dict, VIEW_ITEMS) : c->self, item;
    size_t begin = r->out.len;
    if (pairs.type == V_STRING || !value_is(pairs, TYPES_ITERABLE)) {
        quote_url(r, pairs, false);
        return text_take(r, begin);
    }
    for (Iterator it = iterator_of(r, pairs); iterator_next(r, &it, &item);) {
        List pair = value_to_list(r, item);
        if (pair.count != 2) render_fail(r, "urlencode: expected pairs");
        if (r->out.len > begin) strbuf_putc(&r->out, '&');
        quote_url(r, pair.items[0], true);
        strbuf_putc(&r->out, '=');
        quote_url(r, pair.items[1], true);
    }
    return text_take(r, begin);
}

Value filter_xmlattr(Render *r, const Call *c)
{
    bool   spaced = arg_bool(r, c->argv[0], true);
    size_t begin = r->out.len;
    if (c->self.type != V_DICT) render_fail(r, "xmlattr: expected a dict, got %s", value_type_name(c->self));
    for (uint32_t i = 0; i < c->self.dict->count; i++) {
        Value key = c->self.dict->entries[i].key, value = c->self.dict->entries[i].value;
        if (value.type == V_NONE || value.type == V_UNDEFINED) continue;
        arg_text(r, key, "xmlattr: an attribute's name");
        for (size_t at = 0; at < key.len; at++)
            if (key.text[at] && strchr(" \t\n\r\f\v/>=", key.text[at])) render_fail(r, "xmlattr: invalid character in an attribute's name");
        key = value_to_markup(r, key);
        value = value_to_markup(r, value);
        strbuf_puts(&r->out, spaced ? " " : "");
        print_str(r, key);
        strbuf_puts(&r->out, "=\"");
        print_str(r, value);
        strbuf_putc(&r->out, '"');
        text_fits(r);
        spaced = true;
    }
    return text_take(r, begin);
}
