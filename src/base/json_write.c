/* The JSON writer. Recursion is bounded by JSON_MAX_DEPTH for what json_parse made. */
#include "base/json.h"
#include "base/json_utf8.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_escape(StrBuf *out, unsigned char c)
{
    switch (c) {
    case '"':
        strbuf_puts(out, "\\\"");
        break;
    case '\\':
        strbuf_puts(out, "\\\\");
        break;
    case '\n':
        strbuf_puts(out, "\\n");
        break;
    case '\r':
        strbuf_puts(out, "\\r");
        break;
    case '\t':
        strbuf_puts(out, "\\t");
        break;
    default:
        strbuf_printf(out, "\\u%04x", c);
        break;
    }
}

void json_write_string(StrBuf *out, const char *text, size_t len)
{
    strbuf_reserve(out, len + 2);
    strbuf_putc(out, '"');
    size_t plain = 0; /* start of the run not yet written */
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)text[i];
        size_t        n = json_utf8_len((const unsigned char *)text + i, len - i);
        if (n && c >= 0x20 && c != 0x7F && c != '"' && c != '\\') {
            i += n;
            continue;
        }
        strbuf_append(out, text + plain, i - plain);
        if (n)
            write_escape(out, c);
        else
            strbuf_puts(out, "\xEF\xBF\xBD");
        plain = ++i;
    }
    if (len) strbuf_append(out, text + plain, len - plain);
    strbuf_putc(out, '"');
}

void json_write_double(StrBuf *out, double value)
{
    if (!isfinite(value)) {
        strbuf_puts(out, "null");
        return;
    }
    char text[40];
    /* 15 digits survive a round trip, so the first that reads back is the shortest; not so below the normal range. */
    for (int digits = fabs(value) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    strbuf_puts(out, text);
    if (!strpbrk(text, ".e")) strbuf_puts(out, ".0"); /* stays a double when read back */
}

static void new_line(StrBuf *out, int indent, int level)
{
    if (indent < 0) return;
    strbuf_putc(out, '\n');
    for (int i = 0; i < indent * level; i++) strbuf_putc(out, ' ');
}

static void write_value(StrBuf *out, const JsonValue *value, int indent, int level)
{
    bool object = value->type == JSON_OBJECT;
    switch (value->type) {
    case JSON_NULL:
        strbuf_puts(out, "null");
        return;
    case JSON_BOOL:
        strbuf_puts(out, value->boolean ? "true" : "false");
        return;
    case JSON_INT:
        strbuf_printf(out, "%lld", (long long)value->integer);
        return;
    case JSON_DOUBLE:
        json_write_double(out, value->number);
        return;
    case JSON_STRING:
        json_write_string(out, value->string.data, value->string.len);
        return;
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    strbuf_putc(out, object ? '{' : '[');
    for (uint32_t i = 0; i < value->count; i++) {
        if (i) strbuf_puts(out, indent < 0 ? ", " : ",");
        new_line(out, indent, level + 1);
        if (object) {
            json_write_string(out, value->members[i].key.data, value->members[i].key.len);
            strbuf_puts(out, ": ");
        }
        write_value(out, object ? &value->members[i].value : &value->items[i], indent, level + 1);
    }
    if (value->count) new_line(out, indent, level);
    strbuf_putc(out, object ? '}' : ']');
}

void json_write(StrBuf *out, const JsonValue *value, int indent)
{
    write_value(out, value, indent, 0);
}
