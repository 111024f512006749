/* Filters on texts and numbers. */
#include "text/template/render.h"

#include "text/template/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Value filter_replace(Render *r, const Call *c)
{
    Value self = value_to_text(r, c->self), old = value_to_text(r, c->argv[0]), new_text = value_to_text(r, c->argv[1]);
    self.flags &= (uint8_t)~VALUE_MARKUP;
    return text_replace(r, self, old, new_text, value_is_given(c->argv[2]) ? arg_int(r, c->argv[2], "replace: the count", -1) : -1);
}

static bool splits_words(uint32_t cp)
{
    return cp_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp));
}

/* Filter title. Words begin after blanks, hyphens and opening brackets. */
Value filter_title(Render *r, const Call *c)
{
    Str    text = value_str(value_to_text(r, c->self));
    size_t begin = r->out.len;
    bool   begins = true;
    render_tick(r, (int64_t)(text.len >> 5));
    for (size_t from = 0, pos = 0; from < text.len; from = pos) {
        bool splits = splits_words(utf8_next(text, &pos));
        /* Maps the rest of a word at once, because the case of a sigma depends on its neighbours. */
        for (size_t next = pos; !begins && !splits && pos < text.len; pos = next)
            if (splits_words(utf8_next(text, &next))) break;
        text_map_case(&r->out, (Str){text.data + from, pos - from}, begins && !splits ? CASE_UPPER : CASE_LOWER);
        begins = splits;
    }
    return text_take(r, begin);
}

Value filter_string(Render *r, const Call *c)
{
    return value_to_text(r, c->self);
}

Value filter_safe(Render *r, const Call *c)
{
    Value v = value_to_text(r, c->self);
    v.flags |= VALUE_MARKUP;
    return v;
}

Value filter_escape(Render *r, const Call *c)
{
    Value v = value_to_text(r, c->self);
    if (c->mode) v.flags = 0; /* forceescape: escapes markup again */
    return value_to_markup(r, v);
}

static Value spaces(Render *r, int64_t count)
{
    return value_binary(r, T_MUL, value_text(" ", 1), value_int(count));
}

Value filter_indent(Render *r, const Call *c)
{
    bool  first = arg_bool(r, c->argv[1], false), blank = arg_bool(r, c->argv[2], false);
    Value indention = c->argv[0];
    if (c->self.type == V_UNDEFINED) undefined_fail(r, c->self);
    if (indention.type != V_STRING) indention = spaces(r, arg_int(r, indention, "indent: the width", 4));
    Value  self = value_binary(r, T_ADD, arg_text(r, c->self, "indent: the text"), value_text("\n", 1));
    Value  lines = text_lines(r, self, false);
    size_t begin = r->out.len;
    for (uint32_t i = 0; i < lines.list->count; i++) {
        Value line = lines.list->items[i];
        if (i) strbuf_putc(&r->out, '\n');
        if (i == 0 ? first : blank || line.len) strbuf_append(&r->out, indention.text, indention.len);
        strbuf_append(&r->out, line.text, line.len);
        text_fits(r);
    }
    Value v = text_take(r, begin);
    v.flags |= self.flags & VALUE_MARKUP;
    return v;
}

Value filter_format(Render *r, const Call *c)
{
    return format_percent(r, value_to_text(r, c->self), c->args, false);
}

static _Noreturn void too_large(Render *r)
{
    render_fail(r, "an integer does not fit 64 bits");
}

static Value want_number(Render *r, Value v, const char *what)
{
    if (v.type == V_UNDEFINED) undefined_fail(r, v);
    if (!value_is(v, TYPES_NUMBER)) render_fail(r, "%s: expected a number, got %s", what, value_type_name(v));
    check_size(r, v);
    return v;
}

Value filter_abs(Render *r, const Call *c)
{
    Value v = want_number(r, c->self, "abs");
    if (v.type == V_FLOAT) return value_float(fabs(v.number));
    if (value_as_int(v) < 0) return value_binary(r, T_SUB, value_int(0), v);
    return value_int(value_as_int(v));
}

/* Copies the text without surrounding blanks for strtod or strtoll. False: it surely isn't a number. Fails on underscores and on digits of
 * other scripts, which only Python accepts. */
static bool number_text(Render *r, Value v, char *out, size_t size)
{
    Str    text = text_strip(value_str(v), true, true);
    size_t n = 0;
    render_tick(r, 8 + (int64_t)(v.len >> 6));
    for (size_t pos = 0; pos < text.len;) {
        uint32_t cp = utf8_next(text, &pos);
        if (cp >= 0x80 && cp_is_decimal(cp)) render_fail(r, "digits other than 0 to 9 are not supported");
        if (cp == '_' && n > 0 && out[n - 1] >= '0' && out[n - 1] <= '9') render_fail(r, "underscores in numbers are not supported");
        if (n + 1 >= size || cp >= 0x80 || !cp || strchr("_pPxX(", (int)cp)) return false;
        out[n++] = (char)cp;
    }
    out[n] = 0;
    return n > 0;
}

static bool text_to_float(Render *r, Value v, double *out)
{
    char text[512], *end;
    if (!number_text(r, v, text, sizeof text)) return false;
    *out = strtod(text, &end);
    return !*end;
}

/* Python's int(text); false: the text isn't an integer. */
static bool text_to_int(Render *r, Value v, int64_t *out)
{
    char text[512], *end;
    if (!number_text(r, v, text, sizeof text)) return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (*end) return false;
    if (errno) too_large(r);
    return true;
}

static Value float_to_int(Render *r, double number)
{
    if (!(fabs(number) < 9223372036854775808.0)) too_large(r);
    return value_int((int64_t)number);
}

Value filter_int(Render *r, const Call *c)
{
    Value   self = c->self, otherwise = value_or(c->argv[0], value_int(0));
    int64_t value;
    double  number;
    if (self.type == V_UNDEFINED) undefined_fail(r, self);
    if (value_is(self, TYPES_INTEGRAL)) return value_int(value_as_int(self));
    if (self.type == V_FLOAT && isinf(self.number)) render_fail(r, "cannot convert infinity to an integer");
    if (self.type == V_FLOAT) return isnan(self.number) ? otherwise : float_to_int(r, self.number);
    if (self.type != V_STRING) return otherwise;
    if (arg_int(r, c->argv[1], "int: the base", 10) != 10) render_fail(r, "int: a base other than 10 is not supported");
    if (text_to_int(r, self, &value)) return value_int(value);
    return text_to_float(r, self, &number) && isfinite(number) ? float_to_int(r, number) : otherwise;
}

Value filter_float(Render *r, const Call *c)
{
    Value  v = c->self;
    double number;
    if (v.type == V_UNDEFINED) undefined_fail(r, v);
    if (value_is(v, TYPES_NUMBER)) return value_float(value_as_float(v));
    return v.type == V_STRING && text_to_float(r, v, &number) ? value_float(number) : value_or(c->argv[0], value_float(0));
}

/* Rounds the exact binary value to decimals, ties to even, as printf does. */
static double round_decimals(Render *r, double number, int64_t precision)
{
    char text[512];
    if (!isfinite(number) || precision > 300) return number;
    render_tick(r, 8 + (precision >> 2));
    snprintf(text, sizeof text, "%.*f", (int)precision, number);
    return strtod(text, NULL);
}

Value filter_round(Render *r, const Call *c)
{
    Value   method = value_or(c->argv[1], value_text("common", 6)), v = want_number(r, c->self, "round");
    int64_t precision = arg_int(r, c->argv[0], "round: the precision", 0);
    if (method.type != V_STRING || !str_equal(value_str(method), "common"))
        render_fail(r, "round: methods other than common are not supported");
    if (precision < 0) render_fail(r, "round: a precision below 0 is not supported");
    return value_is(v, TYPES_INTEGRAL) ? value_int(value_as_int(v)) : value_float(round_decimals(r, v.number, precision));
}

Value filter_tojson(Render *r, const Call *c)
{
    TextStyle style = repr_style;
    Value     indent = c->argv[1], separators = c->argv[2];
    size_t    begin = r->out.len;
    style.is_json = true;
    style.ascii = arg_bool(r, c->argv[0], false);
    style.sort_keys = arg_bool(r, c->argv[3], false);
    if (value_is_given(indent)) {
        style.has_indent = true;
        style.item_separator.len = 1;
        style.indent = value_str(indent.type == V_STRING ? indent : spaces(r, arg_int(r, indent, "tojson: the indent", 0)));
    }
    if (value_is_given(separators)) {
        bool is_pair = value_is(separators, TYPES_ARRAY) && separators.list->count == 2;
        if (!is_pair) render_fail(r, "tojson: separators must be two texts");
        style.item_separator = value_str(arg_text(r, separators.list->items[0], "tojson: a separator"));
        style.key_separator = value_str(arg_text(r, separators.list->items[1], "tojson: a separator"));
    }
    print_value(r, c->self, &style);
    return text_take(r, begin);
}
