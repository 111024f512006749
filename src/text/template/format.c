/* "..." % values, with flags, width and precision, and "...".format(values). The result is built at the end of r->out. */
#include "text/template/render.h"
#include "text/template/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_DIGITS = 300 };

/* A conversion specification. */
typedef struct Spec {
    char    align, sign, type; /* align: '<', '>', or '=' (zeros after the sign); sign: 0 if none */
    bool    alternate, zero;
    int64_t width, precision; /* precision: -1 if not given */
} Spec;

/* State while a format is read. */
typedef struct Format {
    Str         text;
    size_t      pos;
    const Args *args;
    uint32_t    used;                /* arguments used so far */
    bool        escape;              /* the format is markup: values are escaped, unless they are markup */
    bool        numbered, automatic; /* kinds of fields of str.format seen so far: {0}, {} */
} Format;

/* The next character; 0 at the end. */
static char peek(const Format *f)
{
    return f->pos < f->text.len ? f->text.data[f->pos] : 0;
}

/* Skips the next character if it is in `set`, and returns it; else returns 0. */
static char skip_any(Format *f, const char *set)
{
    char c = peek(f);
    if (!c || !strchr(set, c)) return 0;
    f->pos++;
    return c;
}

static int64_t read_digits(Render *r, Format *f)
{
    int64_t number = 0;
    for (char c; (c = skip_any(f, "0123456789"));) {
        number = number * 10 + (c - '0');
        if (number > RENDER_MAX_TEXT_BYTES) text_check(r, (size_t)number);
    }
    return number;
}

static int64_t read_precision(Render *r, Format *f)
{
    if (!skip_any(f, ".")) return -1;
    int64_t precision = read_digits(r, f);
    if (precision > MOST_DIGITS) render_fail(r, "a precision beyond %d is not supported", MOST_DIGITS);
    return precision;
}

static void put_padded(Render *r, const Spec *spec, Str prefix, Str body)
{
    int64_t length = (int64_t)(utf8_count(prefix) + utf8_count(body)), margin = spec->width > length ? spec->width - length : 0;
    text_check(r, body.len + (size_t)margin);
    if (spec->align == '=') strbuf_append(&r->out, prefix.data, prefix.len);
    for (int64_t i = 0; i < margin && spec->align != '<'; i++) strbuf_putc(&r->out, spec->align == '=' ? '0' : ' ');
    if (spec->align != '=') strbuf_append(&r->out, prefix.data, prefix.len);
    strbuf_append(&r->out, body.data, body.len);
    for (int64_t i = 0; i < margin && spec->align == '<'; i++) strbuf_putc(&r->out, ' ');
}

/* Formats a number: as a real if the conversion is one of eEfFgG, else as an integer (floats are truncated). */
static void put_number(Render *r, const Spec *spec, Value v)
{
    bool        is_real = strchr("eEfFgG", spec->type), is_float = v.type == V_FLOAT;
    double      number = is_float ? v.number : is_real ? (double)value_as_int(v) : 0;
    int64_t     whole = is_float ? 0 : value_as_int(v);
    bool        is_negative = is_real ? signbit(number) && !isnan(number) : is_float ? number <= -1 : whole < 0;
    int         precision = spec->precision >= 0 ? (int)spec->precision : is_real ? 6 : 1;
    char        head[4] = {is_negative ? '-' : spec->sign}, format[8], base = strchr("xXo", spec->type) ? spec->type : 'u';
    const char *digits;
    check_size(r, v);
    render_tick(r, 8 + (precision >> 2));
    if (!is_real && !isfinite(number)) render_fail(r, "cannot convert float %s to integer", isnan(number) ? "NaN" : "infinity");
    if (spec->alternate && !is_real && base != 'u') strcat(head, base == 'x' ? "0x" : base == 'X' ? "0X" : "0o");
    const char *sharp = is_real && spec->alternate ? "#" : "";
    snprintf(format, sizeof format, is_real ? "%%%s.*%c" : "%%%s.*ll%c", sharp, is_real ? spec->type : base);
    if (is_real)
        digits = arena_printf(&r->arena, format, precision, fabs(number));
    else if (is_float)
        digits = arena_printf(&r->arena, "%.0f", trunc(fabs(number)));
    else
        digits = arena_printf(&r->arena, format, precision, whole < 0 ? 0 - (unsigned long long)whole : (unsigned long long)whole);
    put_padded(r, spec, str_of(head), str_of(digits));
}

static void percent_value(Render *r, Spec *spec, bool escape, Value v)
{
    bool is_text = strchr("sr", spec->type), is_real = strchr("eEfFgG", spec->type), is_whole = strchr("diu", spec->type);
    if (spec->align != '<') spec->align = spec->zero && !is_text ? '=' : '>';
    if (is_text) {
        v = spec->type == 's' ? value_to_text(r, v) : value_repr(r, v);
        Str body = value_str(escape ? value_to_markup(r, v) : v);
        if (spec->precision >= 0) body.len = utf8_offset(body, (size_t)spec->precision);
        put_padded(r, spec, (Str){"", 0}, body);
        return;
    }
    if (v.type == V_UNDEFINED) undefined_fail(r, v);
    if (!value_is(v, is_real || is_whole ? TYPES_NUMBER : TYPES_INTEGRAL))
        render_fail(r, "%%%c format: a number is required, not %s", spec->type, value_type_name(v));
    put_number(r, spec, v);
}

/* Formats one conversion; starts after the %. */
static void percent_item(Render *r, Format *f)
{
    Spec spec = {0};
    if (skip_any(f, "%")) {
        strbuf_putc(&r->out, '%');
        return;
    }
    render_tick(r, 1);
    if (peek(f) == '(') render_fail(r, "names in a format are not supported");
    for (char c; (c = skip_any(f, "#0- +"));) {
        spec.alternate |= c == '#';
        spec.zero |= c == '0';
        if (c == '-') spec.align = '<';
        if (c == '+' || (c == ' ' && !spec.sign)) spec.sign = c;
    }
    spec.width = read_digits(r, f);
    spec.precision = read_precision(r, f);
    spec.type = skip_any(f, "srdiuxXoeEfFgG");
    if (!spec.type) render_fail(r, "the format '%%%c' is not supported", peek(f));
    if (f->used >= f->args->count) render_fail(r, "not enough arguments for format string");
    percent_value(r, &spec, f->escape, f->args->items[f->used++]);
}

/* one_value: args has the single right operand of "..." % value; a tuple there holds the arguments. */
Value format_percent(Render *r, Value format, const Args *args, bool one_value)
{
    Args   spread = *args;
    Format f = {.text = value_str(format), .args = &spread, .escape = format.flags & VALUE_MARKUP};
    size_t begin = r->out.len;
    if (one_value && args->items[0].type == V_TUPLE)
        spread = (Args){.items = args->items[0].list->items, .count = args->items[0].list->count};
    if (args->keywords.count) render_fail(r, "names in a format are not supported");
    while (f.pos < f.text.len) {
        const char *percent = memchr(f.text.data + f.pos, '%', f.text.len - f.pos);
        size_t      end = percent ? (size_t)(percent - f.text.data) : f.text.len;
        strbuf_append(&r->out, f.text.data + f.pos, end - f.pos);
        f.pos = end + 1;
        if (percent) percent_item(r, &f);
        text_fits(r);
    }
    /* A dict, list, range or undefined value may be left over, as in Python: named conversions could use it. */
    bool may_be_left = one_value && value_is(args->items[0], TYPE_DICT | TYPE_LIST | TYPE_RANGE | TYPE_UNDEFINED);
    if (f.used < spread.count && !may_be_left) render_fail(r, "not all arguments converted during string formatting");
    Value v = text_take(r, begin);
    v.flags |= format.flags & VALUE_MARKUP;
    return v;
}

/* The value of a field, which is named by an index, by nothing (the next argument), or by a keyword. */
static Value field_value(Render *r, Format *f, Str name)
{
    int64_t index = number_of(name);
    if (!name.len || index >= 0) {
        f->automatic |= !name.len;
        f->numbered |= name.len > 0;
        if (f->numbered && f->automatic) render_fail(r, "cannot switch between manual field specification and automatic field numbering");
        if (!name.len) index = f->used++;
        if (index >= f->args->count) render_fail(r, "replacement index %lld out of range", (long long)index);
        return f->args->items[index];
    }
    render_tick_dict(r, &f->args->keywords, name.len);
    Value v = dict_get_text(&f->args->keywords, name);
    if (value_is_missing(v)) render_fail(r, "format: no argument '%.*s'", shown(name.len), name.data);
    return v;
}

/* Formats as % does with the same flags. Centering, other fill characters and commas aren't supported. */
static void format_value(Render *r, Value v, Str text)
{
    Spec   spec = {0};
    Format f = {.text = text};
    bool   is_number = value_is(v, TYPES_NUMBER);
    check_size(r, v);
    spec.align = skip_any(&f, "<>");
    spec.sign = skip_any(&f, "+ ");
    spec.alternate = skip_any(&f, "#");
    spec.zero = skip_any(&f, "0");
    spec.width = read_digits(r, &f);
    spec.precision = read_precision(r, &f);
    spec.type = skip_any(&f, !is_number ? "s" : v.type == V_FLOAT ? "eEfFgG" : "dxXoeEfFgG");
    bool is_plain = !spec.type || strchr("sdxXo", spec.type), has_flags = spec.sign || spec.alternate || spec.zero;
    bool is_text = !is_number || (v.type == V_FLOAT && !spec.type);
    if (f.pos < text.len || (!is_number && v.type != V_STRING) || (has_flags && is_text) || (spec.zero && spec.align) ||
        (is_number && is_plain && spec.precision >= 0))
        render_fail(r, "the format '%.*s' of a %s is not supported: use %%", shown(text.len), text.data, value_type_name(v));
    if (!is_number && !spec.align) spec.align = '<';
    if (!spec.type) spec.type = is_text ? 's' : 'd';
    percent_value(r, &spec, false, v);
}

/* Formats a field; `field`: the text between its braces. */
static void format_field(Render *r, Format *f, Str field)
{
    Format rest = {.text = field};
    render_tick(r, 1 + (int64_t)(field.len >> 6));
    while (rest.pos < field.len && peek(&rest) != '!' && peek(&rest) != ':') rest.pos++;
    Value v = field_value(r, f, (Str){field.data, rest.pos});
    if (skip_any(&rest, "!")) {
        char how = skip_any(&rest, "sr");
        if (!how) render_fail(r, "this conversion in a format string is not supported");
        v = how == 's' ? value_to_text(r, v) : value_repr(r, v);
    }
    Str spec = {field.data + rest.pos, field.len - rest.pos};
    if (skip_any(&rest, ":") && spec.len > 1 && !f->escape)
        format_value(r, v, (Str){spec.data + 1, spec.len - 1});
    else if (rest.pos < field.len)
        render_fail(r, "this field of a format string is not supported");
    else
        print_str(r, f->escape ? value_to_markup(r, v) : v);
}

Value format_braces(Render *r, Value format, const Args *args)
{
    Format f = {.text = value_str(format), .args = args, .escape = format.flags & VALUE_MARKUP};
    size_t begin = r->out.len;
    while (f.pos < f.text.len) {
        char c = f.text.data[f.pos++];
        bool is_brace = c == '{' || c == '}', is_double = is_brace && peek(&f) == c;
        if (!is_brace || is_double) {
            strbuf_putc(&r->out, c);
            f.pos += is_double;
            continue;
        }
        const char *end = c == '{' ? memchr(f.text.data + f.pos, '}', f.text.len - f.pos) : NULL;
        if (!end) render_fail(r, "single '%c' encountered in format string", c);
        Str field = {f.text.data + f.pos, (size_t)(end - f.text.data) - f.pos};
        if (memchr(field.data, '{', field.len)) render_fail(r, "a format within a format is not supported");
        f.pos += field.len + 1;
        format_field(r, &f, field);
        text_fits(r);
    }
    return text_take(r, begin);
}
