/* Names are checked character by character: a character that isn't listed is refused. */
#include "serve/http_names.h"

#include "serve/http_server.h"

#include <string.h>

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

bool http_is_token(Str text)
{
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (!is_letter(c) && !is_digit(c) && (c == 0 || !strchr("!#$%&'*+-.^_`|~", c))) return false;
    }
    return text.len > 0;
}

bool http_equal_fold(Str a, Str b)
{
    if (a.len != b.len) return false;
    for (size_t i = 0; i < a.len; i++) {
        if (lower(a.data[i]) != lower(b.data[i])) return false;
    }
    return true;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

Str http_trim(Str text)
{
    while (text.len && is_blank(text.data[0])) text = (Str){text.data + 1, text.len - 1};
    while (text.len && is_blank(text.data[text.len - 1])) text.len--;
    return text;
}

bool http_next_item(Str *list, Str *out)
{
    if (list->len == 0) return false;
    const char *comma = memchr(list->data, ',', list->len);
    size_t      len = comma ? (size_t)(comma - list->data) : list->len, taken = comma ? len + 1 : len;
    *out = http_trim((Str){list->data, len});
    *list = (Str){list->data + taken, list->len - taken};
    return true;
}

static bool digits(Str text, int base, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = lower(text.data[i]);
        int  digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
        if (digit >= base) return false;
        bool is_more = value > (UINT64_MAX - (uint64_t)digit) / (uint64_t)base;
        value = is_more ? UINT64_MAX : value * (uint64_t)base + (uint64_t)digit;
    }
    *out = value;
    return text.len > 0;
}

bool http_digits(Str text, uint64_t *out)
{
    return digits(text, 10, out);
}

bool http_hex_digits(Str text, uint64_t *out)
{
    return digits(text, 16, out);
}

static bool is_host_character(char c, bool in_brackets)
{
    if (in_brackets) return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'f') || c == ':' || c == '.';
    return is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_';
}

bool http_split_host(Str host, Str *out_name)
{
    bool        in_brackets = host.len > 0 && host.data[0] == '[';
    const char *end = host.len == 0 ? NULL : memchr(host.data, in_brackets ? ']' : ':', host.len);
    if (in_brackets && !end) return false;
    size_t   len = !end ? host.len : (size_t)(end - host.data) + (in_brackets ? 1 : 0);
    Str      port = {host.data + len, host.len - len};
    uint64_t number;
    if (port.len && (port.data[0] != ':' || !http_digits((Str){port.data + 1, port.len - 1}, &number) || number > 65535)) return false;
    size_t edge = in_brackets ? 1 : 0;
    if (len <= 2 * edge) return false;
    for (size_t i = edge; i < len - edge; i++) {
        if (!is_host_character(host.data[i], in_brackets)) return false;
    }
    *out_name = (Str){host.data, len};
    return true;
}

/* 127.0.0.0/8, as four decimal numbers. */
static bool is_loopback(Str name)
{
    int parts = 0;
    while (name.len) {
        const char *dot = memchr(name.data, '.', name.len);
        size_t      len = dot ? (size_t)(dot - name.data) : name.len;
        uint64_t    number;
        if (len > 3 || !http_digits((Str){name.data, len}, &number) || number > 255 || (parts == 0 && number != 127)) return false;
        parts++;
        if (!dot) return parts == 4;
        name = (Str){dot + 1, name.len - len - 1};
    }
    return false;
}

bool http_is_local_name(Str host)
{
    Str name;
    if (!http_split_host(host, &name)) return false;
    return http_equal_fold(name, str_of("localhost")) || str_equal(name, "[::1]") || is_loopback(name);
}
