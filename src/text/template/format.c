/* "..." % values and "...".format(values), at the end of r->out. */
#include "text/template/render.h"
#include "text/template/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A conversion: of % or of a format spec. */
typedef struct Spec {
    char    fill[5];
    char    align, sign, type; /* 0: not given */
    bool    alternate, zero;
    char    grouping;         /* ',' or '_' */
    int64_t width, precision; /* precision -1: not given */
} Spec;

/* A format that is being read. */
typedef struct Format {
    Str         text;
    size_t      pos;
    const Args *args;
    uint32_t    used;                /* arguments */
    Value       mapping;             /* of %; V_MISSING: none */
    bool        escape;              /* the format is markup: what it formats is escaped first, unless it is markup itself */
    bool        numbered, automatic; /* fields of str.format so far */
} Format;

/* The next character, 0 at the end. */
static char peek(const Format *f)
{
    return f->pos < f->text.len ? f->text.data[f->pos] : 0;
}

static bool skip(Format *f, char c)
{
    bool skips = f->pos < f->text.len && peek(f) == c;
    f->pos += skips;
    return skips;
}

/* Of the characters in `set` the one that stands next, skipped; 0: none does. */
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
    for (; peek(f) >= '0' && peek(f) <= '9'; f->pos++) {
        number = number * 10 + (peek(f) - '0');
        if (number > RENDER_MAX_TEXT_BYTES) text_check(r, (size_t)number);
    }
    return number;
}

/* ---- padding ---- */

static void put_fill(Render *r, const Spec *spec, int64_t count)
{
    for (; count > 0; count--) strbuf_puts(&r->out, spec->fill);
}

static void put_padded(Render *r, const Spec *spec, Str prefix, Str body, char align)
{
    int64_t length = (int64_t)(utf8_count(prefix) + utf8_count(body));
    int64_t margin = spec->width > length ? spec->width - length : 0;
    if (spec->align) align = spec->align;
    int64_t left = align == '>' || align == '=' ? margin : align == '^' ? margin / 2 : 0;
    text_check(r, body.len + (size_t)margin * 4);
    if (align == '=') strbuf_append(&r->out, prefix.data, prefix.len);
    put_fill(r, spec, left);
    if (align != '=') strbuf_append(&r->out, prefix.data, prefix.len);
    strbuf_append(&r->out, body.data, body.len);
    put_fill(r, spec, margin - left);
}

/* Digits with separators between groups of the whole part; zeros before it, up to `width` characters in all. */
static Str grouped(Render *r, const char *digits, char separator, int group, int64_t width)
{
    int64_t whole = (int64_t)strspn(digits, group == 3 ? "0123456789" : "0123456789abcdefABCDEF"), n = whole;
    int64_t rest = (int64_t)strlen(digits) - whole;
    size_t  begin = r->out.len;
    text_check(r, width > 0 ? (size_t)width : 0);
    while (whole && n + rest + (n - 1) / group < width) n++;
    for (int64_t i = n; i > 0; i--) {
        if (i < n && i % group == 0) strbuf_putc(&r->out, separator);
        strbuf_putc(&r->out, i > whole ? '0' : digits[whole - i]);
    }
    strbuf_puts(&r->out, digits + whole);
    return value_str(text_take(r, begin));
}

static void put_number(Render *r, const Spec *spec, bool negative, const char *prefix, const char *digits, int group)
{
    char head[8] = "";
    char sign = negative ? '-' : spec->sign == '+' || spec->sign == ' ' ? spec->sign : 0;
    snprintf(head, sizeof head, "%.1s%s", sign ? &sign : "", prefix);
    bool    zeros = spec->align == '=' && strcmp(spec->fill, "0") == 0;
    int64_t width = zeros ? spec->width - (int64_t)strlen(head) : 0;
    Str     body = spec->grouping ? grouped(r, digits, spec->grouping, group, width) : str_of(digits);
    put_padded(r, spec, str_of(head), body, '>');
}

/* ---- numbers ---- */

static void put_character(Render *r, const Spec *spec, int64_t number)
{
    char bytes[4];
    if (number < 0 || number > 0x10FFFF || (number >= 0xD800 && number <= 0xDFFF)) render_fail(r, "%%c arg not in range(0x110000)");
    put_padded(r, spec, (Str){"", 0}, (Str){bytes, utf8_encode((uint32_t)number, bytes)}, '>');
}

/* Digits, with zeros before them up to the precision. */
static void put_digits(Render *r, const Spec *spec, bool negative, const char *prefix, const char *digits, int group)
{
    if (spec->precision > 4096) render_fail(r, "a precision beyond 4096 is not supported");
    int64_t zeros = spec->precision - (int64_t)strlen(digits);
    if (zeros > 0) {
        char *padded = arena_alloc(&r->arena, (size_t)spec->precision + 1);
        memset(padded, '0', (size_t)zeros);
        strcpy(padded + zeros, digits);
        digits = padded;
    }
    put_number(r, spec, negative, prefix, digits, group);
}

static void put_integer(Render *r, const Spec *spec, int64_t number)
{
    char        digits[72], type = spec->type;
    const char *letters = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef", *prefix = "";
    uint64_t    magnitude = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    unsigned    base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    size_t      at = sizeof digits - 1;
    digits[at] = 0;
    do {
        digits[--at] = letters[magnitude % base];
        magnitude /= base;
    } while (magnitude);
    if (spec->alternate && base != 10) prefix = type == 'x' ? "0x" : type == 'X' ? "0X" : type == 'o' ? "0o" : "0b";
    put_digits(r, spec, number < 0, prefix, digits + at, base == 10 ? 3 : 4);
}

/* %d of a float: its whole part, however large. */
static void put_whole(Render *r, const Spec *spec, double number)
{
    char digits[512];
    if (!isfinite(number)) render_fail(r, "cannot convert float %s to integer", isnan(number) ? "NaN" : "infinity");
    snprintf(digits, sizeof digits, "%.0f", trunc(fabs(number)));
    put_digits(r, spec, number <= -1, "", digits, 3);
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

static void put_real(Render *r, const Spec *spec, double number)
{
    char   digits[1024], format[8], type = spec->type;
    int    precision = spec->precision < 0 ? 6 : (int)spec->precision;
    double magnitude = fabs(number);
    if (spec->precision > 300) render_fail(r, "a precision beyond 300 is not supported");
    if ((!type || strchr("gGn", type)) && precision == 0) precision = 1;
    if (!isfinite(number)) {
        bool is_capital = type && strchr("FEG", type);
        snprintf(digits, sizeof digits, "%s", isnan(number) ? (is_capital ? "NAN" : "nan") : is_capital ? "INF" : "inf");
    } else if (!type && spec->precision < 0) { /* as repr */
        size_t begin = r->out.len;
        print_float(r, magnitude);
        snprintf(digits, sizeof digits, "%s", text_take(r, begin).text);
    } else if (!type) {
        format_general(digits, sizeof digits - 4, spec->alternate, precision, magnitude);
    } else {
        snprintf(format, sizeof format, "%%%s.*%c", spec->alternate ? "#" : "", type == '%' ? 'f' : type == 'n' ? 'g' : type);
        snprintf(digits, sizeof digits - 4, format, precision, type == '%' ? magnitude * 100 : magnitude);
        if (type == '%') strcat(digits, "%");
    }
    put_number(r, spec, isfinite(number) ? signbit(number) != 0 : number < 0, "", digits, 3);
}

/* ---- texts ---- */

static void put_text(Render *r, const Spec *spec, Value text, char align)
{
    Str body = value_str(text);
    if (spec->precision >= 0) body.len = utf8_offset(body, (size_t)spec->precision);
    put_padded(r, spec, (Str){"", 0}, body, align);
}

/* s, r, a: the value as text. */
static Value convert(Render *r, Value v, char how)
{
    size_t begin = r->out.len;
    if (how == 's') return value_to_text(r, v);
    print_value(r, v, &repr_style);
    Value text = text_take(r, begin);
    if (how == 'r') return text;
    for (size_t pos = 0; pos < text.len;) {
        uint32_t cp = utf8_next(value_str(text), &pos);
        if (cp < 0x80)
            strbuf_putc(&r->out, (char)cp);
        else
            print_code(r, cp);
    }
    return text_take(r, begin);
}

/* ---- % ---- */

static Value next_value(Render *r, Format *f)
{
    if (f->used >= f->args->count) render_fail(r, "not enough arguments for format string");
    return f->args->items[f->used++];
}

static int64_t percent_int(Render *r, Format *f)
{
    if (!skip(f, '*')) return read_digits(r, f);
    Value v = next_value(r, f);
    if (!value_is(v, TYPES_INTEGRAL)) render_fail(r, "* wants int");
    int64_t number = value_as_int(v);
    if (number > RENDER_MAX_TEXT_BYTES || number < -RENDER_MAX_TEXT_BYTES) text_check(r, SIZE_MAX);
    return number;
}

static void percent_character(Render *r, const Spec *spec, Value v)
{
    if (value_is(v, TYPES_INTEGRAL)) {
        put_character(r, spec, value_as_int(v));
        return;
    }
    if (v.type != V_STRING || utf8_count(value_str(v)) != 1) render_fail(r, "%%c requires int or char");
    put_padded(r, spec, (Str){"", 0}, value_str(v), '>');
}

static void percent_text(Render *r, Spec *spec, bool escape, Value v)
{
    if (spec->align != '<') spec->align = '>';
    if (spec->type == 'c') {
        percent_character(r, spec, v);
        return;
    }
    Value text = convert(r, v, spec->type);
    put_text(r, spec, escape ? value_to_markup(r, text) : text, '<');
}

static void percent_number(Render *r, Spec *spec, Value v)
{
    if (spec->zero && spec->align != '<') {
        spec->align = '=';
        spec->fill[0] = '0';
    }
    if (v.type == V_UNDEFINED) undefined_fail(r, v);
    if (strchr("diu", spec->type)) {
        spec->type = 'd';
        if (v.type == V_FLOAT) {
            put_whole(r, spec, v.number);
            return;
        }
    }
    bool is_real = strchr("eEfFgG", spec->type);
    if (!value_is(v, is_real ? TYPES_NUMBER : TYPES_INTEGRAL))
        render_fail(r, "%%%c format: a number is required, not %s", spec->type, value_type_name(v));
    if (is_real)
        put_real(r, spec, value_as_float(v));
    else
        put_integer(r, spec, value_as_int(v));
}

/* (name), behind the parenthesis. */
static Value percent_key(Render *r, Format *f)
{
    size_t begin = f->pos;
    for (int depth = 1; depth; f->pos++) {
        if (f->pos >= f->text.len) render_fail(r, "incomplete format key");
        depth += peek(f) == '(' ? 1 : peek(f) == ')' ? -1 : 0;
    }
    if (f->mapping.type != V_DICT) render_fail(r, "format requires a mapping");
    f->used = f->args->count;
    Str   key = {f->text.data + begin, f->pos - 1 - begin};
    Value v = dict_get_text(f->mapping.dict, key);
    if (value_is_missing(v)) render_fail(r, "no key '%.*s' for format", shown(key.len), key.data);
    return v;
}

/* One conversion, behind the %. */
static void percent_item(Render *r, Format *f)
{
    Spec  spec = {.fill = " ", .precision = -1};
    Value v = {0};
    if (skip(f, '%')) {
        strbuf_putc(&r->out, '%');
        return;
    }
    if (skip(f, '(')) v = percent_key(r, f);
    for (char c; (c = skip_any(f, "#0- +"));) {
        spec.alternate |= c == '#';
        spec.zero |= c == '0';
        if (c == '-') spec.align = '<';
        if (c == '+' || (c == ' ' && !spec.sign)) spec.sign = c;
    }
    spec.width = percent_int(r, f);
    if (spec.width < 0) {
        spec.align = '<';
        spec.width = -spec.width;
    }
    if (skip(f, '.')) {
        spec.precision = percent_int(r, f);
        if (spec.precision < 0) spec.precision = 0;
    }
    while (skip_any(f, "hlL")) continue;
    if (f->pos >= f->text.len) render_fail(r, "incomplete format");
    spec.type = f->text.data[f->pos++];
    if (value_is_missing(v)) v = next_value(r, f);
    check_size(r, v);
    if (f->escape && spec.type && strchr("cxXo", spec.type)) render_fail(r, "%%%c can't be used in markup", spec.type);
    if (!spec.type || !strchr("sracdiuxXoeEfFgG", spec.type)) render_fail(r, "unsupported format character '%c'", spec.type);
    if (strchr("srac", spec.type))
        percent_text(r, &spec, f->escape, v);
    else
        percent_number(r, &spec, v);
}

/* one_value: "..." % value, where a tuple is the arguments and a mapping may be looked into. */
Value format_percent(Render *r, Value format, const Args *args, bool one_value)
{
    enum { MAPPINGS = TYPE_DICT | TYPE_LIST | TYPE_RANGE | TYPE_UNDEFINED };
    Args   spread = *args;
    Format f = {.text = value_str(format), .args = &spread, .escape = format.flags & VALUE_MARKUP};
    size_t begin = r->out.len;
    if (one_value && args->items[0].type == V_TUPLE) {
        spread.items = args->items[0].list->items;
        spread.count = args->items[0].list->count;
    } else if (one_value && value_is(args->items[0], MAPPINGS)) {
        f.mapping = args->items[0];
    } else if (args->num_keywords) {
        Dict *dict = arena_new(&r->arena, Dict);
        for (uint32_t i = 0; i < args->num_keywords; i++) dict_set(r, dict, value_of_str(args->keywords[i].name), args->keywords[i].value);
        f.mapping = value_dict(dict);
        spread = (Args){.items = &f.mapping, .count = 1};
    }
    while (f.pos < f.text.len) {
        const char *percent = memchr(f.text.data + f.pos, '%', f.text.len - f.pos);
        size_t      end = percent ? (size_t)(percent - f.text.data) : f.text.len;
        strbuf_append(&r->out, f.text.data + f.pos, end - f.pos);
        f.pos = end + 1;
        if (percent) percent_item(r, &f);
        text_fits(r);
    }
    if (value_is_missing(f.mapping) && f.used < spread.count) render_fail(r, "not all arguments converted during string formatting");
    Value v = text_take(r, begin);
    v.flags |= format.flags & VALUE_MARKUP;
    return v;
}

/* ---- format ---- */

/* Zeros before a number stand behind its sign; `zero` means them only where no fill is given. */
static Spec parse_spec(Render *r, Str text, bool is_number)
{
    Spec   spec = {.fill = " ", .precision = -1};
    Format f = {.text = text};
    size_t next = 0;
    utf8_next(text, &next);
    bool has_fill = next < text.len && memchr("<>=^", text.data[next], 4);
    if (has_fill) {
        memcpy(spec.fill, text.data, next);
        f.pos = next;
    }
    spec.align = skip_any(&f, "<>=^");
    spec.sign = skip_any(&f, "+- ");
    spec.alternate = skip(&f, '#');
    spec.zero = !has_fill && skip(&f, '0');
    spec.width = read_digits(r, &f);
    spec.grouping = skip_any(&f, ",_");
    if (skip(&f, '.')) {
        if (peek(&f) < '0' || peek(&f) > '9') render_fail(r, "format specifier missing precision");
        spec.precision = read_digits(r, &f);
    }
    if (f.pos < text.len) spec.type = text.data[f.pos++];
    if (f.pos < text.len) render_fail(r, "invalid format specifier");
    if (spec.zero) spec.fill[0] = '0';
    if (spec.zero && !spec.align && is_number) spec.align = '=';
    const char *grouped_types = spec.grouping == '_' ? "deEfFgG%boxX" : "deEfFgG%";
    if (spec.grouping && spec.type && !strchr(grouped_types, spec.type))
        render_fail(r, "cannot specify '%c' with '%c'", spec.grouping, spec.type);
    return spec;
}

static void format_integer(Render *r, Spec *spec, int64_t number)
{
    bool is_character = spec->type == 'c';
    if (spec->precision >= 0) render_fail(r, "precision not allowed in integer format specifier");
    if (spec->type && !strchr("dxXobnc", spec->type)) render_fail(r, "unknown format code '%c' for object of type 'int'", spec->type);
    if (is_character && (spec->sign || spec->alternate)) render_fail(r, "a sign or # is not allowed with 'c'");
    if (is_character)
        put_character(r, spec, number);
    else
        put_integer(r, spec, number);
}

static void format_value(Render *r, Value v, Str spec_text)
{
    if (!spec_text.len) {
        print_str(r, v);
        return;
    }
    if (v.type != V_STRING && !value_is(v, TYPES_NUMBER))
        render_fail(r, "unsupported format string passed to %s.__format__", value_type_name(v));
    check_size(r, v);
    Spec spec = parse_spec(r, spec_text, v.type != V_STRING);
    bool is_real = spec.type && strchr("eEfFgG%n", spec.type);
    if (v.type == V_STRING) {
        if (spec.type && spec.type != 's') render_fail(r, "unknown format code '%c' for object of type 'str'", spec.type);
        if (spec.sign || spec.alternate || spec.grouping) render_fail(r, "format option not allowed for a text");
        if (spec.align == '=') render_fail(r, "'=' alignment not allowed for a text");
        put_text(r, &spec, v, '<');
    } else if (v.type != V_FLOAT && (!is_real || spec.type == 'n')) {
        format_integer(r, &spec, value_as_int(v));
    } else {
        if (spec.type && !is_real) render_fail(r, "unknown format code '%c' for object of type 'float'", spec.type);
        put_real(r, &spec, value_as_float(v));
    }
}

/* A field in markup: escaped when formatted, markup as it is. */
static void format_escaped(Render *r, Value v, Str spec)
{
    size_t begin = r->out.len;
    if (value_is_markup(v) && spec.len) render_fail(r, "a format specifier for markup is not allowed");
    if (!value_is_markup(v)) {
        format_value(r, v, spec);
        v = value_to_markup(r, text_take(r, begin));
    }
    print_str(r, v);
}

/* The number that a text is, of at most `most` digits; -1: it is none. */
static int64_t index_of(Str text, size_t most)
{
    int64_t index = 0;
    if (!text.len || text.len > most) return -1;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return -1;
        index = index * 10 + (text.data[i] - '0');
    }
    return index;
}

/* The first part of a field's name: an index, nothing, or a keyword. */
static Value field_root(Render *r, Format *f, Str name)
{
    int64_t index = index_of(name, 9);
    if (!name.len || index >= 0) {
        f->automatic |= !name.len;
        f->numbered |= name.len > 0;
        if (f->numbered && f->automatic) render_fail(r, "cannot switch between manual field specification and automatic field numbering");
        if (!name.len) index = f->used++;
        if (index >= f->args->count) render_fail(r, "replacement index %lld out of range", (long long)index);
        return f->args->items[index];
    }
    for (uint32_t i = 0; i < f->args->num_keywords; i++)
        if (str_same(f->args->keywords[i].name, name)) return f->args->keywords[i].value;
    render_fail(r, "format: no argument '%.*s'", shown(name.len), name.data);
}

/* name.attribute[item] */
static Value field_value(Render *r, Format *f, Str name)
{
    size_t end = 0;
    while (end < name.len && name.data[end] != '.' && name.data[end] != '[') end++;
    Value v = field_root(r, f, (Str){name.data, end});
    while (end < name.len) {
        bool   is_item = name.data[end] == '[';
        size_t begin = ++end;
        while (end < name.len && (is_item ? name.data[end] != ']' : name.data[end] != '.' && name.data[end] != '[')) end++;
        if (end == begin || (is_item && end >= name.len)) render_fail(r, "empty attribute in format string");
        Str     key = {name.data + begin, end - begin};
        int64_t index = is_item ? index_of(key, 17) : -1;
        v = value_getitem(r, v, index >= 0 ? value_int(index) : value_of_str(key));
        end += is_item;
    }
    return v;
}

static void format_fields(Render *r, Format *f, Str text, int depth);

/* What stands between braces. */
static void format_field(Render *r, Format *f, Str field, int depth)
{
    size_t name = 0;
    int    brackets = 0;
    for (; name < field.len && (brackets || (field.data[name] != '!' && field.data[name] != ':')); name++)
        brackets += field.data[name] == '[' ? 1 : field.data[name] == ']' ? -(brackets > 0) : 0;
    Value  v = field_value(r, f, (Str){field.data, name});
    Format rest = {.text = field, .pos = name};
    if (skip(&rest, '!')) {
        char how = skip_any(&rest, "sra");
        if (!how) render_fail(r, "unknown conversion in format string");
        if (rest.pos < field.len && peek(&rest) != ':') render_fail(r, "expected ':' after conversion specifier");
        v = convert(r, v, how);
    }
    skip(&rest, ':');
    Str spec = {field.data + rest.pos, field.len - rest.pos};
    if (memchr(spec.data, '{', spec.len)) {
        size_t begin = r->out.len;
        format_fields(r, f, spec, depth + 1);
        spec = value_str(text_take(r, begin));
    }
    if (f->escape)
        format_escaped(r, v, spec);
    else
        format_value(r, v, spec);
}

static void format_fields(Render *r, Format *f, Str text, int depth)
{
    if (depth > 1) render_fail(r, "max string recursion exceeded");
    for (size_t pos = 0; pos < text.len;) {
        char c = text.data[pos++];
        bool is_brace = c == '{' || c == '}';
        if (!is_brace || (depth == 0 && pos < text.len && text.data[pos] == c)) {
            strbuf_putc(&r->out, c);
            pos += is_brace;
            continue;
        }
        if (c == '}') render_fail(r, "single '}' encountered in format string");
        size_t begin = pos;
        int    nesting = 1;
        for (; pos < text.len && nesting; pos++) nesting += text.data[pos] == '{' ? 1 : text.data[pos] == '}' ? -1 : 0;
        if (nesting) render_fail(r, "expected '}' before end of string");
        format_field(r, f, (Str){text.data + begin, pos - 1 - begin}, depth);
        text_fits(r);
    }
}

Value format_braces(Render *r, Value format, const Args *args)
{
    Format f = {.args = args, .escape = format.flags & VALUE_MARKUP};
    size_t begin = r->out.len;
    format_fields(r, &f, value_str(format), 0);
    return text_take(r, begin);
}
