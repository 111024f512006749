/* The JSON writer. Its recursion is bounded by JSON_MAX_DEPTH for values that json_parse made. */
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

/* Increments the last digit of d.ddde+x; false if it is a 9. */
static bool next_decimal(char *text)
{
    char *last = strchr(text, 'e') - 1;
    if (*last == '9') return false;
    ++*last;
    return true;
}

/* Writes the shortest digits that read back to the same number, in the form of "%.17e". A decimal of up to 15 digits survives the round
 * trip through a double, so a shorter result appears at 15 digits, padded with zeros. Subnormal numbers have fewer digits: their search
 * starts at 1 digit. Below a power of two doubles are denser than above it: there the nearest decimal may not read back, while the next
 * higher decimal does. */
static void shortest(double number, char *out, size_t size)
{
    for (int precision = fabs(number) < DBL_MIN ? 1 : 15; precision <= 17; precision++) {
        snprintf(out, size, "%.*e", precision - 1, number);
        if (strtod(out, NULL) == number) return;
        if (precision < 17 && next_decimal(out) && strtod(out, NULL) == number) return;
    }
}

/* Python's notation is positional for exponents -4 to 15, else scientific. */
void json_write_double(StrBuf *out, double value)
{
    char text[40], digits[24];
    if (!isfinite(value)) {
        strbuf_puts(out, "null");
        return;
    }
    shortest(value, text, sizeof text);
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
        strbuf_printf(out, "0.%.*s%s", -1 - exponent, "000", digits);
    } else {
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1) strbuf_putc(out, '.');
            strbuf_putc(out, i < n ? digits[i] : '0');
        }
        if (n <= exponent + 1) strbuf_puts(out, ".0");
    }
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
        if (value->count)
            strbuf_puts(out, value->digits);
        else
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
