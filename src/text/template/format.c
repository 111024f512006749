/* "..." % values and "...".format(values). */
#include "text/template/filters.h"
#include "text/template/methods.h"
#include "text/template/text.h"
#include "text/tokenizer_unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A conversion: of % or of a format spec. */
typedef struct Spec {
    char    fill[5];
    char    align, sign, type; /* 0: not given */
    bool    alternate, zero;
    char    grouping;          /* ',' or '_' */
    int64_t width, precision;  /* precision -1: not given */
} Spec;

static Status parse_digits(Render *r, Str text, size_t *pos, int64_t *out)
{
    for (; *pos < text.len && text.data[*pos] >= '0' && text.data[*pos] <= '9'; ++*pos) {
        *out = *out * 10 + (text.data[*pos] - '0');
        if (*out > RENDER_MAX_TEXT_BYTES) return text_check(r, (size_t)*out);
    }
    return OK;
}

static Status append_padded(Render *r, StrBuf *out, const Spec *spec, Str prefix, Str body, char align)
{
    int64_t length = (int64_t)(utf8_count(prefix.data, prefix.len) + utf8_count(body.data, body.len));
    int64_t margin = spec->width > length ? spec->width - length : 0, left = 0;
    if (spec->align) align = spec->align;
    TRY(text_check(r, out->len + body.len + (size_t)margin * 4));
    if (align == '>' || align == '=') left = margin;
    if (align == '^') left = margin / 2;
    if (align == '=') strbuf_append(out, prefix.data, prefix.len);
    for (int64_t i = 0; i < left; i++) strbuf_puts(out, spec->fill);
    if (align != '=') strbuf_append(out, prefix.data, prefix.len);
    strbuf_append(out, body.data, body.len);
    for (int64_t i = left; i < margin; i++) strbuf_puts(out, spec->fill);
    return OK;
}

/* Separators between groups of digits of the whole part; zeros before it, up to `width` characters in all. */
static Status group_digits(Render *r, StrBuf *out, const char *digits, char separator, int group, int64_t width)
{
    int64_t whole = (int64_t)strspn(digits, group == 3 ? "0123456789" : "0123456789abcdefABCDEF"), n = whole;
    int64_t rest = (int64_t)strlen(digits) - whole;
    TRY(text_check(r, width > 0 ? (size_t)width : 0));
    while (whole && n + rest + (n - 1) / group < width) n++;
    for (int64_t i = n; i > 0; i--) {
        if (i < n && separator && i % group == 0) strbuf_putc(out, separator);
        strbuf_putc(out, i > whole ? '0' : digits[whole - i]);
    }
    strbuf_puts(out, digits + whole);
    return OK;
}

static Status append_number(Render *r, StrBuf *out, const Spec *spec, bool negative, const char *prefix, const char *digits, int group)
{
    char   head[8] = "";
    StrBuf body = { 0 };
    char   sign = negative ? '-' : spec->sign == '+' || spec->sign == ' ' ? spec->sign : 0;
    snprintf(head, sizeof head, "%.1s%s", sign ? &sign : "", prefix);
    bool   zeros = spec->grouping && spec->align == '=' && strcmp(spec->fill, "0") == 0;
    Status status = group_digits(r, &body, digits, spec->grouping, group, zeros ? spec->width - (int64_t)strlen(head) : 0);
    if (status == OK) status = append_padded(r, out, spec, str_of(head), (Str){ strbuf_cstr(&body), body.len }, '>');
    strbuf_deinit(&body);
    return status;
}

static Status append_character(Render *r, StrBuf *out, const Spec *spec, int64_t number)
{
    char bytes[4];
    if (number < 0 || number > 0x10FFFF || (number >= 0xD800 && number <= 0xDFFF))
        return render_fail(r, "%%c arg not in range(0x110000)");
    return append_padded(r, out, spec, (Str){ "", 0 }, (Str){ bytes, utf8_encode((uint32_t)number, bytes) }, '>');
}

/* Digits, with zeros before them up to the precision. */
static Status append_digits(Render *r, StrBuf *out, const Spec *spec, bool negative, const char *prefix, const char *digits,
                            int group)
{
    int64_t n = (int64_t)strlen(digits);
    if (spec->precision > 4096) return render_fail(r, "a precision beyond 4096 is not supported");
    if (spec->precision <= n) return append_number(r, out, spec, negative, prefix, digits, group);
    char *padded = arena_alloc(&r->arena, (size_t)spec->precision + 1);
    memset(padded, '0', (size_t)spec->precision);
    memcpy(padded + spec->precision - n, digits, (size_t)n + 1);
    return append_number(r, out, spec, negative, prefix, padded, group);
}

static Status append_integer(Render *r, StrBuf *out, const Spec *spec, int64_t number)
{
    char     digits[72], type = spec->type ? spec->type : 'd';
    uint64_t magnitude = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    size_t   at = sizeof digits - 1;
    digits[at] = 0;
    do {
        digits[--at] = (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[magnitude % base];
        magnitude /= base;
    } while (magnitude);
    const char *prefix = "";
    if (spec->alternate && base != 10) prefix = type == 'x' ? "0x" : type == 'X' ? "0X" : type == 'o' ? "0o" : "0b";
    return append_digits(r, out, spec, number < 0, prefix, digits + at, base == 10 ? 3 : 4);
}

/* %d of a float: its whole part, however large. */
static Status append_whole(Render *r, StrBuf *out, const Spec *spec, double number)
{
    char digits[512];
    if (!isfinite(number)) return render_fail(r, "cannot convert float %s to integer", isnan(number) ? "NaN" : "infinity");
    snprintf(digits, sizeof digits, "%.0f", trunc(fabs(number)));
    return append_digits(r, out, spec, number <= -1, "", digits, 3);
}

/* Python's format without a type: as %g, but with an exponent already when no decimal would be left; else with one. */
static void format_general(char *digits, size_t size, bool alternate, int precision, double magnitude)
{
    snprintf(digits, size, "%.*e", precision - 1, magnitude);
    if (atoi(strchr(digits, 'e') + 1) != precision - 1) {
        snprintf(digits, size, alternate ? "%#.*g" : "%.*g", precision, magnitude);
        if (!strpbrk(digits, ".e")) strcat(digits, ".0");
        return;
    }
    char *exponent = strchr(digits, 'e'), *end = exponent;
    if (alternate || !strchr(digits, '.')) return;
    while (end[-1] == '0') end--;
    if (end[-1] == '.') end--;
    memmove(end, exponent, strlen(exponent) + 1);
}

static Status append_real(Render *r, StrBuf *out, const Spec *spec, double number)
{
    char digits[1024], format[8] = "%", type = spec->type;
    int  precision = spec->precision < 0 ? 6 : (int)spec->precision;
    if (spec->precision > 300) return render_fail(r, "a precision beyond 300 is not supported");
    double magnitude = fabs(number);
    if (!isfinite(number)) {
        const char *text = isnan(number) ? "nan" : "inf";
        if (type == 'F' || type == 'E' || type == 'G') text = isnan(number) ? "NAN" : "INF";
        return append_number(r, out, spec, number < 0, "", text, 3);
    }
    if (!type && spec->precision < 0) { /* as repr */
        StrBuf text = { 0 };
        append_float(&text, magnitude);
        snprintf(digits, sizeof digits, "%s", strbuf_cstr(&text));
        strbuf_deinit(&text);
    } else {
        size_t n = 1;
        if (spec->alternate) format[n++] = '#';
        memcpy(format + n, ".*", 2);
        format[n + 2] = type == '%' ? 'f' : type == 'n' || !type ? 'g' : type;
        if ((format[n + 2] | 32) == 'g' && precision == 0) precision = 1;
        if (type) snprintf(digits, sizeof digits - 4, format, precision, type == '%' ? magnitude * 100 : magnitude);
        else format_general(digits, sizeof digits - 4, spec->alternate, precision, magnitude);
        if (type == '%') strcat(digits, "%");
    }
    return append_number(r, out, spec, signbit(number) != 0, "", digits, 3);
}

static Status append_text(Render *r, StrBuf *out, const Spec *spec, Value text)
{
    Str body = value_str(text);
    if (spec->precision >= 0) body.len = utf8_offset(body.data, body.len, (size_t)spec->precision);
    return append_padded(r, out, spec, (Str){ "", 0 }, body, '<');
}

/* s, r, a: the value as text. */
static Status convert(Render *r, Value v, char how, Value *out)
{
    StrBuf text = { 0 }, ascii = { 0 };
    if (how == 's') return value_to_text(r, v, out);
    Status status = value_append_repr(r, &text, v, 0);
    for (size_t pos = 0; how == 'a' && pos < text.len;) {
        uint32_t cp = utf8_next(text.data, text.len, &pos);
        if (cp < 0x80) strbuf_putc(&ascii, (char)cp);
        else append_escape(&ascii, cp);
    }
    if (status == OK) status = text_finish(r, how == 'a' ? &ascii : &text, out);
    strbuf_deinit(&text);
    strbuf_deinit(&ascii);
    return status;
}

/* What markup formats is escaped first, unless it is markup itself. */
static Status escaped(Render *r, Value text, bool escape, Value *out)
{
    *out = text;
    return escape ? value_to_markup(r, text, out) : OK;
}

/* ---- % ---- */

typedef struct Percent {
    const Args *args;
    Value       mapping; /* V_MISSING: none */
    uint32_t    used;
    bool        escape;  /* the format is markup */
} Percent;

static Status next_value(Render *r, Percent *p, Value *out)
{
    if (p->used >= p->args->count) return render_fail(r, "not enough arguments for format string");
    *out = p->args->items[p->used++];
    return OK;
}

static Status percent_int(Render *r, Percent *p, Str format, size_t *pos, int64_t *out)
{
    if (*pos < format.len && format.data[*pos] == '*') {
        Value v;
        ++*pos;
        TRY(next_value(r, p, &v));
        if (!value_is_integral(v)) return render_fail(r, "* wants int");
        *out = value_as_int(v);
        return OK;
    }
    int64_t number = 0;
    TRY(parse_digits(r, format, pos, &number));
    *out = number;
    return OK;
}

static Status percent_character(Render *r, StrBuf *out, const Spec *spec, Value v)
{
    if (value_is_integral(v)) return append_character(r, out, spec, value_as_int(v));
    if (v.type != V_STRING || utf8_count(v.text, v.len) != 1) return render_fail(r, "%%c requires int or char");
    return append_padded(r, out, spec, (Str){ "", 0 }, value_str(v), '>');
}

static Status percent_value(Render *r, StrBuf *out, Spec *spec, bool escape, Value v)
{
    Value text;
    TRY(check_size(r, v));
    if (spec->zero && spec->align != '<') spec->align = '=', spec->fill[0] = '0';
    if (escape && strchr("cxXo", spec->type)) return render_fail(r, "%%%c can't be used in markup", spec->type);
    switch (spec->type) {
    case 's':
    case 'r':
    case 'a':
    case 'c':
        if (spec->align == '=') spec->fill[0] = ' ';
        if (spec->align != '<') spec->align = '>';
        if (spec->type == 'c') return percent_character(r, out, spec, v);
        TRY(convert(r, v, spec->type, &text));
        TRY(escaped(r, text, escape, &text));
        return append_text(r, out, spec, text);
    case 'd':
    case 'i':
    case 'u':
        if (v.type == V_FLOAT) return append_whole(r, out, spec, v.number);
        spec->type = 'd';
        /* fallthrough */
    case 'x':
    case 'X':
    case 'o':
        if (v.type == V_UNDEFINED) return undefined_fail(r, v);
        if (!value_is_integral(v)) return render_fail(r, "%%%c format: a number is required, not %s", spec->type, value_type_name(v));
        return append_integer(r, out, spec, value_as_int(v));
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (v.type == V_UNDEFINED) return undefined_fail(r, v);
        if (!value_is_number(v)) return render_fail(r, "must be real number, not %s", value_type_name(v));
        return append_real(r, out, spec, value_as_float(v));
    default: return render_fail(r, "unsupported format character '%c'", spec->type);
    }
}

/* One conversion; pos is behind the %. */
static Status percent_item(Render *r, Percent *p, Str format, size_t *pos, StrBuf *out)
{
    Spec  spec = { .fill = " ", .precision = -1 };
    Value v = { 0 };
    if (*pos < format.len && format.data[*pos] == '%') {
        ++*pos;
        strbuf_putc(out, '%');
        return OK;
    }
    if (*pos < format.len && format.data[*pos] == '(') {
        size_t begin = ++*pos;
        int    depth = 1;
        for (; *pos < format.len && depth; ++*pos) depth += format.data[*pos] == '(' ? 1 : format.data[*pos] == ')' ? -1 : 0;
        if (depth) return render_fail(r, "incomplete format key");
        if (p->mapping.type != V_DICT) return render_fail(r, "format requires a mapping");
        p->used = p->args->count;
        v = dict_get_text(p->mapping.dict, (Str){ format.data + begin, *pos - 1 - begin });
        if (value_is_missing(v)) return render_fail(r, "no key '%.*s' for format", (int)((*pos - 1 - begin) & 0xFF), format.data + begin);
    }
    for (; *pos < format.len && memchr("#0- +", format.data[*pos], 5); ++*pos) {
        char c = format.data[*pos];
        if (c == '#') spec.alternate = true;
        if (c == '0') spec.zero = true;
        if (c == '-') spec.align = '<';
        if (c == '+' || (c == ' ' && !spec.sign)) spec.sign = c;
    }
    TRY(percent_int(r, p, format, pos, &spec.width));
    if (spec.width < 0) spec.align = '<', spec.width = -spec.width;
    if (*pos < format.len && format.data[*pos] == '.') {
        ++*pos;
        TRY(percent_int(r, p, format, pos, &spec.precision));
        if (spec.precision < 0) spec.precision = 0;
    }
    while (*pos < format.len && memchr("hlL", format.data[*pos], 3)) ++*pos;
    if (*pos >= format.len) return render_fail(r, "incomplete format");
    spec.type = format.data[(*pos)++];
    if (value_is_missing(v)) TRY(next_value(r, p, &v));
    return percent_value(r, out, &spec, p->escape, v);
}

static Status percent_all(Render *r, Percent *p, Str format, StrBuf *out)
{
    for (size_t pos = 0; pos < format.len;) {
        const char *percent = memchr(format.data + pos, '%', format.len - pos);
        size_t      end = percent ? (size_t)(percent - format.data) : format.len;
        strbuf_append(out, format.data + pos, end - pos);
        pos = end + 1;
        if (!percent) break;
        TRY(percent_item(r, p, format, &pos, out));
        TRY(text_check(r, out->len));
    }
    if (value_is_missing(p->mapping) && p->used < p->args->count)
        return render_fail(r, "not all arguments converted during string formatting");
    return OK;
}

/* one_value: "..." % value, where a tuple is the arguments and a mapping may be looked into. */
Status format_percent(Render *r, Value format, const Args *args, bool one_value, Value *out)
{
    Args    spread = *args;
    Percent p = { .args = &spread, .escape = format.flags & VALUE_MARKUP };
    StrBuf  text = { 0 };
    if (one_value && args->items[0].type == V_TUPLE) {
        spread.items = args->items[0].list->items;
        spread.count = args->items[0].list->count;
    } else if (one_value && args->items[0].type != V_STRING &&
               (args->items[0].type == V_DICT || args->items[0].type == V_LIST || args->items[0].type == V_RANGE ||
                args->items[0].type == V_UNDEFINED)) {
        p.mapping = args->items[0];
    } else if (args->num_keywords) {
        Dict *dict = arena_new(&r->arena, Dict);
        for (uint32_t i = 0; i < args->num_keywords; i++)
            TRY(dict_set(r, dict, value_text(args->keywords[i].name.data, args->keywords[i].name.len), args->keywords[i].value));
        Value *item = arena_array(&r->arena, Value, 1);
        *item = p.mapping = (Value){ .type = V_DICT, .dict = dict };
        spread = (Args){ item, 1, NULL, 0 };
    }
    Status status = percent_all(r, &p, value_str(format), &text);
    if (status == OK) {
        TRY(text_finish(r, &text, out));
        out->flags |= format.flags & VALUE_MARKUP;
        return OK;
    }
    strbuf_deinit(&text);
    return status;
}

/* ---- format ---- */

typedef struct Braces {
    const Args *args;
    int64_t     automatic; /* next {} */
    bool        explicit_index, automatic_index;
    bool        escape; /* the format is markup */
} Braces;

static Status append_braces(Render *r, Braces *b, Str format, StrBuf *out, int depth);

static Status check_grouping(Render *r, const Spec *spec)
{
    const char *allowed = spec->grouping == '_' ? "deEfFgG%boxX" : "deEfFgG%";
    if (!spec->grouping || !spec->type || strchr(allowed, spec->type)) return OK;
    return render_fail(r, "cannot specify '%c' with '%c'", spec->grouping, spec->type);
}

static Status parse_spec(Render *r, Str text, bool is_number, Spec *spec)
{
    size_t pos = 0, next = 0;
    *spec = (Spec){ .fill = " ", .precision = -1 };
    if (text.len) utf8_next(text.data, text.len, &next);
    bool has_fill = next < text.len && memchr("<>=^", text.data[next], 4);
    if (has_fill) {
        memcpy(spec->fill, text.data, next);
        spec->align = text.data[next];
        pos = next + 1;
    } else if (text.len && memchr("<>=^", text.data[0], 4)) {
        spec->align = text.data[pos++];
    }
    if (pos < text.len && memchr("+- ", text.data[pos], 3)) spec->sign = text.data[pos++];
    if (pos < text.len && text.data[pos] == '#') spec->alternate = true, pos++;
    if (pos < text.len && text.data[pos] == '0' && !has_fill) {
        spec->fill[0] = '0';
        if (!spec->align && is_number) spec->align = '=';
        pos++;
    }
    TRY(parse_digits(r, text, &pos, &spec->width));
    if (pos < text.len && (text.data[pos] == ',' || text.data[pos] == '_')) spec->grouping = text.data[pos++];
    if (pos < text.len && text.data[pos] == '.') {
        spec->precision = 0;
        if (++pos >= text.len || text.data[pos] < '0' || text.data[pos] > '9') return render_fail(r, "format specifier missing precision");
        TRY(parse_digits(r, text, &pos, &spec->precision));
    }
    if (pos < text.len) spec->type = text.data[pos++];
    if (pos < text.len) return render_fail(r, "invalid format specifier");
    return check_grouping(r, spec);
}

static Status format_integer(Render *r, StrBuf *out, Spec *spec, int64_t number)
{
    if (spec->precision >= 0) return render_fail(r, "precision not allowed in integer format specifier");
    if (spec->type && !strchr("dxXobnc", spec->type))
        return render_fail(r, "unknown format code '%c' for object of type 'int'", spec->type);
    if (spec->type == 'c' && (spec->sign || spec->alternate)) return render_fail(r, "a sign or # is not allowed with 'c'");
    if (spec->type == 'c') return append_character(r, out, spec, number);
    if (spec->type == 'n') spec->type = 'd';
    return append_integer(r, out, spec, number);
}

static Status append_formatted(Render *r, StrBuf *out, Value v, Str spec_text)
{
    Spec spec;
    if (!spec_text.len) return value_append_str(r, out, v);
    if (v.type != V_STRING && !value_is_number(v))
        return render_fail(r, "unsupported format string passed to %s.__format__", value_type_name(v));
    TRY(check_size(r, v));
    TRY(parse_spec(r, spec_text, v.type != V_STRING, &spec));
    bool real_type = spec.type && strchr("eEfFgG%n", spec.type);
    if (v.type == V_STRING) {
        if (spec.type && spec.type != 's') return render_fail(r, "unknown format code '%c' for object of type 'str'", spec.type);
        if (spec.sign || spec.alternate || spec.grouping) return render_fail(r, "format option not allowed for a text");
        if (spec.align == '=') return render_fail(r, "'=' alignment not allowed for a text");
        return append_text(r, out, &spec, v);
    }
    if (v.type != V_FLOAT && (!real_type || spec.type == 'n')) return format_integer(r, out, &spec, value_as_int(v));
    if (spec.type && !real_type) return render_fail(r, "unknown format code '%c' for object of type 'float'", spec.type);
    return append_real(r, out, &spec, value_as_float(v));
}

/* A field in markup: escaped when formatted, markup as it is. */
static Status append_escaped(Render *r, StrBuf *out, Value v, Str spec_text)
{
    Value  text = v;
    StrBuf plain = { 0 };
    if (v.type == V_STRING && (v.flags & VALUE_MARKUP)) {
        if (spec_text.len) return render_fail(r, "a format specifier for markup is not allowed");
    } else {
        Status status = append_formatted(r, &plain, v, spec_text);
        if (status == OK) status = text_finish(r, &plain, &text);
        strbuf_deinit(&plain);
        TRY(status);
    }
    TRY(value_to_markup(r, text, &text));
    strbuf_append(out, text.text, text.len);
    return OK;
}

/* The first part of a field's name: an index, nothing, or a keyword. */
static Status field_root(Render *r, Braces *b, Str name, Value *out)
{
    int64_t index = 0;
    bool    digits = name.len > 0 && name.len < 10;
    for (size_t i = 0; i < name.len && digits; i++) {
        digits = name.data[i] >= '0' && name.data[i] <= '9';
        index = index * 10 + (name.data[i] - '0');
    }
    if (!name.len || digits) {
        bool *mine = name.len ? &b->explicit_index : &b->automatic_index;
        *mine = true;
        if (b->explicit_index && b->automatic_index)
            return render_fail(r, "cannot switch between manual field specification and automatic field numbering");
        if (!name.len) index = b->automatic++;
        if (index >= b->args->count) return render_fail(r, "replacement index %lld out of range", (long long)index);
        *out = b->args->items[index];
        return OK;
    }
    for (uint32_t i = 0; i < b->args->num_keywords; i++) {
        if (!str_same(b->args->keywords[i].name, name)) continue;
        *out = b->args->keywords[i].value;
        return OK;
    }
    return render_fail(r, "format: no argument '%.*s'", (int)(name.len & 0xFF), name.data);
}

/* name.attribute[item] */
static Status field_value(Render *r, Braces *b, Str name, Value *out)
{
    size_t end = 0;
    while (end < name.len && name.data[end] != '.' && name.data[end] != '[') end++;
    TRY(field_root(r, b, (Str){ name.data, end }, out));
    while (end < name.len) {
        bool   item = name.data[end] == '[';
        size_t begin = ++end;
        while (end < name.len && (item ? name.data[end] != ']' : name.data[end] != '.' && name.data[end] != '[')) end++;
        if (end == begin || (item && end >= name.len)) return render_fail(r, "empty attribute in format string");
        Value key = value_text(name.data + begin, end - begin);
        bool  digits = item && key.len < 18;
        for (size_t i = begin; i < end && digits; i++) digits = name.data[i] >= '0' && name.data[i] <= '9';
        if (digits) {
            int64_t index = 0;
            for (size_t i = begin; i < end; i++) index = index * 10 + (name.data[i] - '0');
            key = value_int(index);
        }
        TRY(value_getitem(r, *out, key, out));
        end += item;
    }
    return OK;
}

/* What stands between braces. */
static Status append_field(Render *r, Braces *b, Str field, StrBuf *out, int depth)
{
    size_t name = 0;
    int    brackets = 0;
    char   how = 0;
    Value  v;
    for (; name < field.len && (brackets || (field.data[name] != '!' && field.data[name] != ':')); name++)
        brackets += field.data[name] == '[' ? 1 : field.data[name] == ']' ? -(brackets > 0) : 0;
    TRY(field_value(r, b, (Str){ field.data, name }, &v));
    size_t pos = name;
    if (pos < field.len && field.data[pos] == '!') {
        how = pos + 1 < field.len ? field.data[pos + 1] : 0;
        if (how != 's' && how != 'r' && how != 'a') return render_fail(r, "unknown conversion in format string");
        pos += 2;
        if (pos < field.len && field.data[pos] != ':') return render_fail(r, "expected ':' after conversion specifier");
    }
    if (how) TRY(convert(r, v, how, &v));
    Str    spec = { field.data + field.len, 0 };
    StrBuf nested = { 0 };
    if (pos < field.len) spec = (Str){ field.data + pos + 1, field.len - pos - 1 };
    Status status = OK;
    if (memchr(spec.data, '{', spec.len)) {
        status = append_braces(r, b, spec, &nested, depth + 1);
        spec = (Str){ strbuf_cstr(&nested), nested.len };
    }
    if (status == OK) status = b->escape ? append_escaped(r, out, v, spec) : append_formatted(r, out, v, spec);
    strbuf_deinit(&nested);
    return status;
}

static Status append_braces(Render *r, Braces *b, Str format, StrBuf *out, int depth)
{
    if (depth > 1) return render_fail(r, "max string recursion exceeded");
    for (size_t pos = 0; pos < format.len;) {
        char c = format.data[pos];
        if (c != '{' && c != '}') {
            strbuf_putc(out, c);
            pos++;
            continue;
        }
        if (depth == 0 && pos + 1 < format.len && format.data[pos + 1] == c) {
            strbuf_putc(out, c);
            pos += 2;
            continue;
        }
        if (c == '}') return render_fail(r, "single '}' encountered in format string");
        size_t begin = ++pos;
        int    nesting = 1;
        for (; pos < format.len && nesting; pos++) nesting += format.data[pos] == '{' ? 1 : format.data[pos] == '}' ? -1 : 0;
        if (nesting) return render_fail(r, "expected '}' before end of string");
        TRY(append_field(r, b, (Str){ format.data + begin, pos - 1 - begin }, out, depth));
        TRY(text_check(r, out->len));
    }
    return OK;
}

Status format_braces(Render *r, Value format, const Args *args, Value *out)
{
    Braces b = { .args = args, .escape = format.flags & VALUE_MARKUP };
    StrBuf text = { 0 };
    Status status = append_braces(r, &b, value_str(format), &text, 0);
    if (status == OK) return text_finish(r, &text, out);
    strbuf_deinit(&text);
    return status;
}
