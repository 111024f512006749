/* Filters that know of HTML and addresses: striptags, urlencode, xmlattr. */
#include "text/template/filters.h"

#include "text/template/methods.h"
#include "text/template/text.h"
#include "text/tokenizer_unicode.h"

#include <string.h>

/* ---- striptags ---- */

/* Comments and tags out, up to one that doesn't end, and runs of white space to one space, none at the ends. */
static void strip_tags(StrBuf *out, Str text)
{
    bool space = false, has_end = true;
    for (size_t pos = 0; pos < text.len;) {
        size_t next = pos, end = SIZE_MAX;
        if (text.data[pos] == '<' && has_end) {
            bool comment = text.len - pos >= 4 && memcmp(text.data + pos, "<!--", 4) == 0;
            end = comment ? text_find(text, str_of("-->"), pos + 4) : text_find(text, str_of(">"), pos);
            has_end = end != SIZE_MAX;
            if (has_end) end += comment ? 3 : 1;
        }
        bool is_space = cp_is_space(utf8_next(text.data, text.len, &next));
        if (end != SIZE_MAX) {
            next = end;
        } else if (is_space) {
            space = out->len > 0;
        } else {
            if (space) strbuf_putc(out, ' ');
            space = false;
            strbuf_append(out, text.data + pos, next - pos);
        }
        pos = next;
    }
}

/* Entities that may lack their semicolon; from nbsp on in the order of Latin-1, from U+00A0. */
static const char *const entities[] = {
    "AMP", "LT", "GT", "QUOT", "COPY", "REG", "amp", "lt", "gt", "quot",
    "nbsp", "iexcl", "cent", "pound", "curren", "yen", "brvbar", "sect", "uml", "copy", "ordf", "laquo", "not", "shy", "reg",
    "macr", "deg", "plusmn", "sup2", "sup3", "acute", "micro", "para", "middot", "cedil", "sup1", "ordm", "raquo", "frac14",
    "frac12", "frac34", "iquest", "Agrave", "Aacute", "Acirc", "Atilde", "Auml", "Aring", "AElig", "Ccedil", "Egrave", "Eacute",
    "Ecirc", "Euml", "Igrave", "Iacute", "Icirc", "Iuml", "ETH", "Ntilde", "Ograve", "Oacute", "Ocirc", "Otilde", "Ouml",
    "times", "Oslash", "Ugrave", "Uacute", "Ucirc", "Uuml", "Yacute", "THORN", "szlig", "agrave", "aacute", "acirc", "atilde",
    "auml", "aring", "aelig", "ccedil", "egrave", "eacute", "ecirc", "euml", "igrave", "iacute", "icirc", "iuml", "eth",
    "ntilde", "ograve", "oacute", "ocirc", "otilde", "ouml", "divide", "oslash", "ugrave", "uacute", "ucirc", "uuml", "yacute",
    "thorn", "yuml",
};
enum { NUM_ENTITIES = sizeof entities / sizeof entities[0], FIRST_LATIN = 10, MAX_ENTITY = 32 };

static uint32_t entity_cp(size_t index)
{
    static const uint32_t first[FIRST_LATIN] = { '&', '<', '>', '"', 0xA9, 0xAE, '&', '<', '>', '"' };
    return index < FIRST_LATIN ? first[index] : 0xA0 + (uint32_t)(index - FIRST_LATIN);
}

/* Bytes of "#123;", "#x7B" and the like at text, or 0; the character, or 0 for none. */
static size_t number_entity(Str text, uint32_t *out)
{
    static const uint16_t windows[] = {
        0x20AC, 0x81, 0x201A, 0x192, 0x201E, 0x2026, 0x2020, 0x2021, 0x2C6, 0x2030, 0x160, 0x2039, 0x152, 0x8D, 0x17D, 0x8F,
        0x90, 0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014, 0x2DC, 0x2122, 0x161, 0x203A, 0x153, 0x9D, 0x17E, 0x178,
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
    if (cp == 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) *out = 0xFFFD;
    else if (cp >= 0x80 && cp <= 0x9F) *out = windows[cp - 0x80];
    else if (control || cp == 0x7F || (cp & 0xFFFE) == 0xFFFE || (cp >= 0xFDD0 && cp <= 0xFDEF)) *out = 0;
    return pos + (pos < text.len && text.data[pos] == ';');
}

/* Bytes of the entity's name at text with its semicolon, or 0; the character. Of names without one the longest counts. */
static Status named_entity(Render *r, Str text, uint32_t *out, size_t *out_len)
{
    size_t end = 0;
    *out_len = 0;
    while (end < text.len && end < MAX_ENTITY && !strchr("\t\n\f <&#;", text.data[end])) end++;
    bool closed = end && end < text.len && text.data[end] == ';';
    if (closed && str_equal((Str){ text.data, end }, "apos")) {
        *out = '\'';
        *out_len = end + 1;
        return OK;
    }
    for (size_t i = 0; i < NUM_ENTITIES; i++) {
        size_t n = strlen(entities[i]);
        if (n > end || n < *out_len || memcmp(text.data, entities[i], n) != 0) continue;
        *out = entity_cp(i);
        *out_len = n;
    }
    if (closed && *out_len != end) return render_fail(r, "the entity '&%.*s;' is not supported", (int)end, text.data);
    *out_len += closed;
    return OK;
}

static Status unescape(Render *r, StrBuf *out, Str text)
{
    for (size_t pos = 0; pos < text.len;) {
        Str      rest = { text.data + pos + 1, text.len - pos - 1 };
        uint32_t cp = 0;
        size_t   len = 0;
        char     bytes[4];
        if (text.data[pos] == '&' && rest.len) {
            if (rest.data[0] == '#') len = number_entity(rest, &cp);
            else TRY(named_entity(r, rest, &cp, &len));
        }
        if (!len) strbuf_putc(out, text.data[pos]);
        else if (cp) strbuf_append(out, bytes, utf8_encode(cp, bytes));
        pos += len + 1;
    }
    return OK;
}

FILTER_FN(striptags)
{
    StrBuf bare = { 0 }, text = { 0 };
    UNUSED(argv), UNUSED(args);
    TRY(value_to_text(r, self, &self));
    TRY(text_check(r, self.len));
    strip_tags(&bare, value_str(self));
    Status status = unescape(r, &text, (Str){ strbuf_cstr(&bare), bare.len });
    if (status == OK) status = text_finish(r, &text, out);
    strbuf_deinit(&bare);
    strbuf_deinit(&text);
    return status;
}

/* ---- urlencode, xmlattr ---- */

static void quote_url(StrBuf *out, Str text, bool query)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if ((c < 0x80 && cp_is_alnum(c)) || c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query)) {
            strbuf_putc(out, (char)c);
        } else if (c == ' ' && query) {
            strbuf_putc(out, '+');
        } else {
            strbuf_printf(out, "%%%02X", c);
        }
    }
}

static Status encode_pairs(Render *r, Value pairs, StrBuf *out)
{
    List list;
    View view = { pairs.dict, VIEW_ITEMS };
    if (pairs.type == V_DICT) pairs = (Value){ .type = V_VIEW, .view = &view };
    TRY(value_to_list(r, pairs, &list));
    for (uint32_t i = 0; i < list.count; i++) {
        List  pair;
        Value text;
        TRY(value_to_list(r, list.items[i], &pair));
        if (pair.count != 2) return render_fail(r, "urlencode: expected pairs");
        for (int j = 0; j < 2; j++) {
            if (j || i) strbuf_putc(out, j ? '=' : '&');
            TRY(value_to_text(r, pair.items[j], &text));
            quote_url(out, value_str(text), true);
        }
        TRY(text_check(r, out->len));
    }
    return OK;
}

FILTER_FN(urlencode)
{
    StrBuf text = { 0 };
    Status status = OK;
    UNUSED(argv), UNUSED(args);
    if (self.type == V_STRING || !value_is_iterable(self)) {
        TRY(value_to_text(r, self, &self));
        TRY(text_check(r, self.len));
        quote_url(&text, value_str(self), false);
    } else {
        status = encode_pairs(r, self, &text);
    }
    if (status == OK) return text_finish(r, &text, out);
    strbuf_deinit(&text);
    return status;
}

FILTER_FN(xmlattr)
{
    bool  autospace, any = false;
    Value text = value_text("", 0);
    UNUSED(args);
    TRY(arg_bool(r, argv[0], true, &autospace));
    if (self.type != V_DICT) return render_fail(r, "xmlattr: expected a dict, got %s", value_type_name(self));
    for (uint32_t i = 0; i < self.dict->count; i++) {
        Value key = self.dict->entries[i].key, value = self.dict->entries[i].value, parts[5];
        if (value.type == V_NONE || value.type == V_UNDEFINED) continue;
        if (key.type != V_STRING) return render_fail(r, "xmlattr: keys must be texts");
        for (size_t c = 0; c < key.len; c++)
            if (strchr(" \t\n\r\f\v/>=", key.text[c]) && key.text[c])
                return render_fail(r, "xmlattr: invalid character in an attribute's name");
        parts[0] = value_text(" ", any || autospace);
        parts[2] = value_text("=\"", 2);
        parts[4] = value_text("\"", 1);
        TRY(value_to_markup(r, key, &parts[1]));
        TRY(value_to_markup(r, value, &parts[3]));
        for (int p = 0; p < 5; p++) {
            parts[p].flags = 0;
            TRY(value_binary(r, T_ADD, text, parts[p], &text));
        }
        any = true;
    }
    *out = text;
    return OK;
}

