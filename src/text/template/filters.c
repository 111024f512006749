/* Filters on texts and numbers, and the table of all. */
#include "text/template/filters.h"

#include "text/template/methods.h"
#include "text/template/repr.h"
#include "text/template/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER_ROW(fn, name, params) { name, filter_##fn, params },
const Builtin  template_filters[] = { TEMPLATE_FILTERS(FILTER_ROW) };
const uint32_t template_num_filters = sizeof template_filters / sizeof template_filters[0];

Status arg_int(Render *r, Value v, const char *what, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (value_is_missing(v)) return OK;
    if (!value_is_integral(v)) return render_fail(r, "%s must be an integer, not %s", what, value_type_name(v));
    *out = value_as_int(v);
    return OK;
}

Status arg_bool(Render *r, Value v, bool otherwise, bool *out)
{
    *out = otherwise;
    return value_is_missing(v) ? OK : value_truth(r, v, out);
}

static Status call_text_method(Render *r, Value self, MethodId id, const Value *items, uint32_t count, Value *out)
{
    Args args = { items, count, NULL, 0 };
    TRY(value_to_text(r, self, &self));
    TRY(builtin_call(r, &template_text_methods.methods[id], self, &args, out));
    if (out->type == V_STRING) out->flags |= self.flags & VALUE_MARKUP;
    return OK;
}

FILTER_FN(upper) { UNUSED(argv), UNUSED(args); return call_text_method(r, self, M_upper, NULL, 0, out); }
FILTER_FN(lower) { UNUSED(argv), UNUSED(args); return call_text_method(r, self, M_lower, NULL, 0, out); }
FILTER_FN(capitalize) { UNUSED(argv), UNUSED(args); return call_text_method(r, self, M_capitalize, NULL, 0, out); }
FILTER_FN(trim) { UNUSED(args); return call_text_method(r, self, M_strip, argv, value_is_missing(argv[0]) ? 0 : 1, out); }

FILTER_FN(center)
{
    Value width = arg_or(argv[0], value_int(80));
    UNUSED(args);
    return call_text_method(r, self, M_center, &width, 1, out);
}

FILTER_FN(replace)
{
    Value items[3] = { argv[0], argv[1], argv[2] };
    UNUSED(args);
    TRY(value_to_text(r, argv[0], &items[0]));
    TRY(value_to_text(r, argv[1], &items[1]));
    bool has_count = !value_is_missing(argv[2]) && argv[2].type != V_NONE;
    TRY(value_to_text(r, self, &self));
    self.flags &= (uint8_t)~VALUE_MARKUP;
    return call_text_method(r, self, M_replace, items, has_count ? 3 : 2, out);
}

/* Words start behind blanks, hyphens and opening brackets. */
FILTER_FN(title)
{
    StrBuf text = { 0 };
    bool   begins = true;
    UNUSED(argv), UNUSED(args);
    TRY(value_to_text(r, self, &self));
    for (size_t pos = 0; pos < self.len;) {
        size_t   begin = pos;
        uint32_t cp = utf8_next(self.text, self.len, &pos);
        bool     splits = cp_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
        size_t   end = pos;
        while (!begins && !splits && end < self.len) { /* the rest of the word at once: sigma looks around */
            size_t   next = end;
            uint32_t other = utf8_next(self.text, self.len, &next);
            if (cp_is_space(other) || (other < 0x80 && other && strchr("-({[<", (int)other))) break;
            end = next;
        }
        text_map_case(&text, (Str){ self.text + begin, end - begin }, begins && !splits ? CASE_UPPER : CASE_LOWER);
        begins = splits;
        pos = end;
    }
    return text_finish(r, &text, out);
}

FILTER_FN(string)
{
    UNUSED(argv), UNUSED(args);
    return value_to_text(r, self, out);
}

FILTER_FN(safe)
{
    UNUSED(argv), UNUSED(args);
    TRY(value_to_text(r, self, out));
    out->flags |= VALUE_MARKUP;
    return OK;
}

FILTER_FN(escape)
{
    UNUSED(argv), UNUSED(args);
    TRY(value_to_text(r, self, &self));
    return value_to_markup(r, self, out);
}

FILTER_FN(forceescape)
{
    UNUSED(argv), UNUSED(args);
    TRY(value_to_text(r, self, &self));
    self.flags = 0;
    return value_to_markup(r, self, out);
}

FILTER_FN(wordcount)
{
    int64_t count = 0;
    bool    inside = false;
    UNUSED(argv), UNUSED(args);
    TRY(value_to_text(r, self, &self));
    TRY(render_tick(r, self.len >> 8));
    for (size_t pos = 0; pos < self.len;) {
        uint32_t cp = utf8_next(self.text, self.len, &pos);
        bool     word = cp == '_' || cp_is_alnum(cp);
        count += word && !inside;
        inside = word;
    }
    *out = value_int(count);
    return OK;
}

FILTER_FN(indent)
{
    bool   first, blank;
    Value  lines, indention = argv[0];
    StrBuf text = { 0 };
    UNUSED(args);
    TRY(arg_bool(r, argv[1], false, &first));
    TRY(arg_bool(r, argv[2], false, &blank));
    if (self.type == V_UNDEFINED) return undefined_fail(r, self);
    if (self.type != V_STRING) return render_fail(r, "indent: expected a text, got %s", value_type_name(self));
    if (indention.type != V_STRING) {
        int64_t width;
        TRY(arg_int(r, argv[0], "indent: the width", 4, &width));
        TRY(value_binary(r, T_MUL, value_text(" ", 1), value_int(width), &indention));
    }
    TRY(value_binary(r, T_ADD, self, value_text("\n", 1), &self));
    TRY(call_text_method(r, self, M_splitlines, NULL, 0, &lines));
    for (uint32_t i = 0; i < lines.list->count; i++) {
        Value line = lines.list->items[i];
        if (i) strbuf_putc(&text, '\n');
        if (i == 0 ? first : blank || line.len) strbuf_append(&text, indention.text, indention.len);
        strbuf_append(&text, line.text, line.len);
        if (text.len > RENDER_MAX_TEXT_BYTES) break;
    }
    TRY(text_finish(r, &text, out));
    out->flags |= self.flags & VALUE_MARKUP;
    return OK;
}

FILTER_FN(truncate)
{
    int64_t length, leeway, count, end_count;
    bool    killwords;
    Value   end = arg_or(argv[2], value_text("...", 3)), head, cut;
    UNUSED(args);
    TRY(arg_int(r, argv[0], "truncate: the length", 255, &length));
    TRY(arg_bool(r, argv[1], false, &killwords));
    TRY(arg_int(r, argv[3].type == V_NONE ? (Value){ 0 } : argv[3], "truncate: the leeway", 5, &leeway));
    TRY(value_length(r, end, &end_count));
    TRY(value_length(r, self, &count));
    if (length < end_count || leeway < 0) return render_fail(r, "truncate: the length must be at least that of the end, leeway at least 0");
    *out = self;
    if (count <= length || count - length <= leeway) return OK;
    if (self.type != V_STRING || end.type != V_STRING) return render_fail(r, "truncate: expected a text, got %s", value_type_name(self));
    TRY(value_slice(r, self, value_int(0), value_int(length - end_count), value_none(), &head));
    cut = head;
    if (!killwords) {
        size_t hit = text_find_last(value_str(head), str_of(" "));
        if (hit != SIZE_MAX) cut.len = (uint32_t)hit;
    }
    return value_binary(r, T_ADD, cut, end, out);
}

FILTER_FN(format)
{
    UNUSED(argv);
    if (args->count && args->num_keywords) return render_fail(r, "format: positional and keyword arguments can't be mixed");
    TRY(value_to_text(r, self, &self));
    return format_percent(r, self, args, false, out);
}

/* ---- numbers ---- */

FILTER_FN(abs)
{
    UNUSED(argv), UNUSED(args);
    if (self.type == V_UNDEFINED) return undefined_fail(r, self);
    if (!value_is_number(self)) return render_fail(r, "bad operand type for abs(): '%s'", value_type_name(self));
    TRY(check_size(r, self));
    *out = self;
    if (self.type == V_BOOL) *out = value_int(self.boolean);
    if (self.type == V_FLOAT) *out = value_float(fabs(self.number));
    if (self.type == V_INT && self.integer < 0) return value_binary(r, T_SUB, value_int(0), self, out);
    return OK;
}

/* The text without blanks around and single underscores between digits, decimal digits of any script as 0 to 9; false when
 * there is none. */
static bool number_text(Value v, char *out, size_t size)
{
    Str    text = text_strip(value_str(v), true, true);
    size_t n = 0;
    uint32_t last = 0;
    for (size_t pos = 0; pos < text.len;) {
        uint32_t cp = utf8_next(text.data, text.len, &pos);
        if (cp >= 0x80 && cp_is_decimal(cp)) cp = '0' + cp_decimal_value(cp);
        if (cp == '_' && cp_is_alnum(last) && pos < text.len && text.data[pos] != '_') {
            last = cp;
            continue;
        }
        if (n + 1 >= size || cp >= 0x80 || !cp || strchr("_pP", (int)cp)) return false;
        if (last == '_' && !cp_is_alnum(cp)) return false;
        out[n++] = (char)(last = cp);
    }
    out[n] = 0;
    return n > 0;
}

static bool text_to_float(Value v, double *out)
{
    char  text[512], *end;
    if (!number_text(v, text, sizeof text) || strpbrk(text, "xX(")) return false;
    *out = strtod(text, &end);
    return !*end && !cp_is_space((unsigned char)text[0]);
}

/* Python's int(text, base); 1: no such number, 2: too large. */
static int text_to_int(Value v, int base, int64_t *out)
{
    char  text[512], *s = text, *end;
    bool  negative = false;
    if (!number_text(v, text, sizeof text)) return 1;
    if (*s == '+' || *s == '-') negative = *s++ == '-';
    char letter = s[0] == '0' ? (char)(s[1] | 32) : 0;
    int  prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefix && (base == 0 || base == prefix)) {
        base = prefix;
        s += 2;
    } else if (base == 0) {
        if (s[0] == '0' && strspn(s, "0") != strlen(s)) return 1;
        base = 10;
    }
    if (!*s || !cp_is_alnum((unsigned char)*s) || (base == 16 && s[0] == '0' && (s[1] | 32) == 'x')) return 1;
    errno = 0;
    unsigned long long magnitude = strtoull(s, &end, base);
    if (*end) return 1;
    if (errno || magnitude > (unsigned long long)INT64_MAX + negative) return 2;
    *out = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return 0;
}

static Status float_to_int(Render *r, double number, Value *out)
{
    if (!(fabs(number) < 9223372036854775808.0)) return render_fail(r, "an integer does not fit 64 bits");
    *out = value_int((int64_t)number);
    return OK;
}

FILTER_FN(int)
{
    int64_t base, value;
    double  number;
    UNUSED(args);
    *out = arg_or(argv[0], value_int(0));
    TRY(arg_int(r, argv[1], "int: the base", 10, &base));
    if (self.type == V_UNDEFINED) return undefined_fail(r, self);
    if (value_is_integral(self)) {
        *out = value_int(value_as_int(self));
        return OK;
    }
    if (self.type == V_FLOAT) return isfinite(self.number) ? float_to_int(r, self.number, out) : isnan(self.number) ? OK : render_fail(r, "cannot convert infinity to an integer");
    if (self.type != V_STRING) return OK;
    if (base == 0 || (base >= 2 && base <= 36)) {
        int failure = text_to_int(self, (int)base, &value);
        if (failure == 2) return render_fail(r, "an integer does not fit 64 bits");
        if (!failure) {
            *out = value_int(value);
            return OK;
        }
    }
    if (text_to_float(self, &number) && isfinite(number)) return float_to_int(r, number, out);
    return OK;
}

FILTER_FN(float)
{
    double number;
    UNUSED(args);
    *out = arg_or(argv[0], value_float(0));
    if (self.type == V_UNDEFINED) return undefined_fail(r, self);
    if (value_is_number(self)) {
        *out = value_float(value_as_float(self));
    } else if (self.type == V_STRING && text_to_float(self, &number)) {
        *out = value_float(number);
    }
    return OK;
}

/* Decimal rounding of the exact value, ties to even: what printf does. */
static double round_decimals(double number, int64_t precision)
{
    char text[512];
    if (!isfinite(number) || precision > 300) return number;
    if (precision < -308) return copysign(0, number);
    if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)precision, number);
        return strtod(text, NULL);
    }
    double scale = pow(10, (double)-precision);
    return nearbyint(number / scale) * scale;
}

static Status round_integer(Render *r, int64_t number, int64_t precision, Value *out)
{
    int64_t scale = 1;
    *out = value_int(number);
    if (precision >= 0) return OK;
    *out = value_int(0);
    if (precision < -18) return OK;
    while (precision++ < 0) scale *= 10;
    int64_t rest = number % scale, base = number - rest, twice = rest < 0 ? -rest : rest;
    bool    odd = (base / scale) % 2 != 0, up = twice > scale - twice || (twice == scale - twice && odd);
    if (up && __builtin_add_overflow(base, number < 0 ? -scale : scale, &base)) return render_fail(r, "an integer does not fit 64 bits");
    *out = value_int(base);
    return OK;
}

FILTER_FN(round)
{
    int64_t precision;
    Value   method = arg_or(argv[1], value_text("common", 6));
    UNUSED(args);
    bool to_integer = argv[0].type == V_NONE; /* round(x, None) */
    TRY(arg_int(r, to_integer ? (Value){ 0 } : argv[0], "round: the precision", 0, &precision));
    bool up = method.type == V_STRING && str_equal(value_str(method), "ceil");
    bool down = method.type == V_STRING && str_equal(value_str(method), "floor");
    if (!up && !down && !(method.type == V_STRING && str_equal(value_str(method), "common")))
        return render_fail(r, "round: the method must be common, ceil or floor");
    if (self.type == V_UNDEFINED) return undefined_fail(r, self);
    if (!value_is_number(self)) return render_fail(r, "round: expected a number, got %s", value_type_name(self));
    TRY(check_size(r, self));
    if (up || down) {
        if (to_integer) return render_fail(r, "round: the precision must be an integer, not NoneType");
        double scale = pow(10, (double)precision), number = value_as_float(self) * scale;
        if (!isfinite(number)) return render_fail(r, "round: the number is too large");
        *out = value_float(((up ? ceil(number) : floor(number)) + 0.0) / scale); /* Python's ceil gives integers: no -0 */
        return OK;
    }
    if (value_is_integral(self)) return round_integer(r, value_as_int(self), precision, out);
    *out = value_float(round_decimals(self.number, precision));
    return to_integer ? float_to_int(r, out->number, out) : OK;
}

FILTER_FN(filesizeformat)
{
    static const char units[] = "kMGTPEZY";
    bool              binary;
    double            bytes;
    Value             number;
    UNUSED(args);
    TRY(arg_bool(r, argv[0], false, &binary));
    TRY(filter_float(r, self, (Value[]){ value_none() }, args, &number));
    if (number.type != V_FLOAT) return render_fail(r, "filesizeformat: expected a number");
    bytes = number.number;
    double base = binary ? 1024 : 1000;
    const char *text;
    if (bytes == 1) {
        text = "1 Byte";
    } else if (bytes < base) {
        text = arena_printf(&r->arena, "%.0f Bytes", trunc(bytes) + 0.0);
    } else {
        int         i = 0;
        long double unit = (long double)base * base; /* powers of 1000 up to the ninth are exact */
        for (; bytes >= unit && i < 7; i++) unit *= base;
        text = arena_printf(&r->arena, "%.1f %c%sB", base * bytes / (double)unit, binary && i == 0 ? 'K' : units[i],
                            binary ? "i" : "");
    }
    *out = value_text(text, strlen(text));
    return OK;
}

static Status indent_of(Render *r, Value v, JsonStyle *style)
{
    Value indent;
    if (value_is_missing(v) || v.type == V_NONE) return OK;
    style->has_indent = true;
    style->item_separator = str_of(",");
    if (v.type == V_STRING) {
        style->indent = value_str(v);
        return OK;
    }
    int64_t width;
    TRY(arg_int(r, v, "tojson: the indent", 0, &width));
    TRY(value_binary(r, T_MUL, value_text(" ", 1), value_int(width), &indent));
    style->indent = value_str(indent);
    return OK;
}

FILTER_FN(tojson)
{
    JsonStyle style = { .item_separator = str_of(", "), .key_separator = str_of(": ") };
    Value     separators = argv[2];
    UNUSED(args);
    TRY(arg_bool(r, argv[0], false, &style.ascii));
    TRY(indent_of(r, argv[1], &style));
    TRY(arg_bool(r, argv[3], false, &style.sort_keys));
    if (!value_is_missing(separators) && separators.type != V_NONE) {
        bool pair = (separators.type == V_LIST || separators.type == V_TUPLE) && separators.list->count == 2 &&
                    separators.list->items[0].type == V_STRING && separators.list->items[1].type == V_STRING;
        if (!pair) return render_fail(r, "tojson: separators must be two texts");
        style.item_separator = value_str(separators.list->items[0]);
        style.key_separator = value_str(separators.list->items[1]);
    }
    return value_dump_json(r, self, &style, out);
}
