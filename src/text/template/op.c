/* Operators, subscripts and attributes. */
#include "text/template/methods.h"
#include "text/template/open.h"
#include "text/template/text.h"

#include <math.h>
#include <string.h>

/* ---- arithmetic ---- */

static Status overflow(const Render *r)
{
    return render_fail(r, "an integer does not fit 64 bits, larger ones are not supported");
}

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

static Status int_power(const Render *r, int64_t base, int64_t exponent, Value *out)
{
    int64_t result = 1;
    if (base == 0 || base == 1 || base == -1) {
        *out = value_int(base == 0 ? exponent == 0 : (exponent & 1) ? base : 1);
        return OK;
    }
    if (exponent > 63) return overflow(r);
    for (int64_t i = 0; i < exponent; i++)
        if (__builtin_mul_overflow(result, base, &result)) return overflow(r);
    *out = value_int(result);
    return OK;
}

static Status int_binary(const Render *r, TokenKind op, int64_t a, int64_t b, Value *out)
{
    int64_t result = 0;
    bool    wraps = false;
    switch (op) {
    case T_ADD: wraps = __builtin_add_overflow(a, b, &result); break;
    case T_SUB: wraps = __builtin_sub_overflow(a, b, &result); break;
    case T_MUL: wraps = __builtin_mul_overflow(a, b, &result); break;
    case T_FLOORDIV:
        if (b == 0) return render_fail(r, "integer division or modulo by zero");
        if (a == INT64_MIN && b == -1) return overflow(r);
        result = floor_div(a, b);
        break;
    default: /* T_MOD */
        if (b == 0) return render_fail(r, "integer division or modulo by zero");
        result = b == -1 ? 0 : a - floor_div(a, b) * b;
        break;
    }
    if (wraps) return overflow(r);
    *out = value_int(result);
    return OK;
}

static double float_mod(double a, double b)
{
    double mod = fmod(a, b);
    if (mod != 0) return (b < 0) != (mod < 0) ? mod + b : mod;
    return copysign(0.0, b);
}

/* Python's: the quotient that goes with float_mod, with its roundings. */
static double float_floor_div(double a, double b)
{
    double mod = fmod(a, b), quotient = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
    if (quotient == 0) return copysign(0.0, a / b);
    double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

static int num_bits(uint64_t i)
{
    return i ? 64 - __builtin_clzll(i) : 0;
}

/* a / b, rounded once. */
static double int_ratio(int64_t a, int64_t b)
{
    enum { QUOTIENT_BITS = 56 }; /* more than a double has, the last one for what is left */
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    int      shift = QUOTIENT_BITS + num_bits(y) - num_bits(x);
    if (num_bits(x | y) <= 53) return (double)a / (double)b;
    if (shift < 0) shift = 0;
    unsigned __int128 scaled = (unsigned __int128)x << shift, quotient = scaled / y;
    double            ratio = ldexp((double)(uint64_t)(quotient | (scaled % y != 0)), -shift);
    return (a < 0) != (b < 0) ? -ratio : ratio;
}

static Status float_binary(const Render *r, TokenKind op, double a, double b, Value *out)
{
    if (b == 0 && (op == T_DIV || op == T_FLOORDIV || op == T_MOD)) return render_fail(r, "division by zero");
    double result = 0;
    switch (op) {
    case T_ADD: result = a + b; break;
    case T_SUB: result = a - b; break;
    case T_MUL: result = a * b; break;
    case T_DIV: result = a / b; break;
    case T_FLOORDIV: result = float_floor_div(a, b); break;
    case T_MOD: result = float_mod(a, b); break;
    default: /* T_POW */
        if (a == 0 && b < 0) return render_fail(r, "0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b)) return render_fail(r, "complex numbers are not supported");
        result = pow(a, b);
        if (isinf(result) && isfinite(a) && isfinite(b)) return render_fail(r, "the result of ** is too large");
    }
    *out = value_float(result);
    return OK;
}

static Status number_binary(Render *r, TokenKind op, Value a, Value b, Value *out)
{
    TRY(check_size(r, a));
    TRY(check_size(r, b));
    bool integers = value_is_integral(a) && value_is_integral(b);
    if (integers && op == T_POW && value_as_int(b) >= 0) return int_power(r, value_as_int(a), value_as_int(b), out);
    if (integers && op == T_DIV && value_as_int(b) != 0) {
        *out = value_float(int_ratio(value_as_int(a), value_as_int(b)));
        return OK;
    }
    if (integers && op != T_DIV && op != T_POW) return int_binary(r, op, value_as_int(a), value_as_int(b), out);
    return float_binary(r, op, value_as_float(a), value_as_float(b), out);
}

/* ---- texts and lists ---- */

Status value_to_markup(Render *r, Value v, Value *out)
{
    TRY(value_to_text(r, v, out));
    if (out->flags & VALUE_MARKUP) return OK;
    StrBuf text = { 0 };
    for (size_t i = 0; i < out->len; i++) {
        char c = out->text[i];
        switch (c) {
        case '&': strbuf_puts(&text, "&amp;"); break;
        case '<': strbuf_puts(&text, "&lt;"); break;
        case '>': strbuf_puts(&text, "&gt;"); break;
        case '"': strbuf_puts(&text, "&#34;"); break;
        case '\'': strbuf_puts(&text, "&#39;"); break;
        default: strbuf_putc(&text, c);
        }
    }
    TRY(text_finish(r, &text, out));
    out->flags |= VALUE_MARKUP;
    return OK;
}

static Status add_texts(Render *r, Value a, Value b, Value *out)
{
    uint8_t markup = (a.flags | b.flags) & VALUE_MARKUP;
    if (markup) {
        TRY(value_to_markup(r, a, &a));
        TRY(value_to_markup(r, b, &b));
    }
    TRY(text_check(r, (size_t)a.len + b.len));
    char *text = arena_alloc(&r->arena, (size_t)a.len + b.len + 1);
    if (a.len) memcpy(text, a.text, a.len);
    if (b.len) memcpy(text + a.len, b.text, b.len);
    *out = value_text(text, (size_t)a.len + b.len);
    out->flags = (uint8_t)(markup | (a.flags & b.flags & VALUE_ASCII));
    return OK;
}

static Status add_lists(Render *r, Value a, Value b, Value *out)
{
    size_t count = (size_t)a.list->count + b.list->count;
    TRY(render_tick(r, (int64_t)(count >> 3)));
    Value *items = arena_array(&r->arena, Value, count);
    if (a.list->count) memcpy(items, a.list->items, a.list->count * sizeof *items);
    if (b.list->count) memcpy(items + a.list->count, b.list->items, b.list->count * sizeof *items);
    *out = value_list(r, (ValueType)a.type, items, (uint32_t)count);
    return OK;
}

static Status repeat(Render *r, Value sequence, int64_t times, Value *out)
{
    size_t one = sequence.type == V_STRING ? sequence.len : (size_t)sequence.list->count * sizeof(Value), total;
    if (times < 0) times = 0;
    if (__builtin_mul_overflow(one, (size_t)times, &total)) total = SIZE_MAX;
    TRY(text_check(r, total));
    char *bytes = arena_alloc(&r->arena, total + 1);
    for (size_t at = 0; at < total; at += one)
        memcpy(bytes + at, sequence.type == V_STRING ? (const void *)sequence.text : sequence.list->items, one);
    if (sequence.type == V_STRING) {
        *out = value_text(bytes, total);
        out->flags = sequence.flags;
    } else {
        *out = value_list(r, (ValueType)sequence.type, (Value *)(void *)bytes, (uint32_t)(total / sizeof(Value)));
    }
    return OK;
}

static bool is_sequence(Value v)
{
    return v.type == V_STRING || v.type == V_LIST || v.type == V_TUPLE;
}

static bool is_set(Value v)
{
    return v.type == V_VIEW && v.view->kind != VIEW_VALUES;
}

Status value_binary(Render *r, TokenKind op, Value a, Value b, Value *out)
{
    static const char *const names[] = { "+", "-", "*", "/", "//", "%", "**" };
    if (a.type == V_OPEN || b.type == V_OPEN) return op == T_ADD ? open_join(r, (Value[]){ a, b }, 2, out) : open_stop(r);
    if (value_is_number(a) && value_is_number(b)) return number_binary(r, op, a, b, out);
    if (op == T_MOD && a.type == V_STRING) {
        Args args = { &b, 1, NULL, 0 };
        return format_percent(r, a, &args, true, out);
    }
    if (a.type == V_UNDEFINED) return undefined_fail(r, a);
    if (op == T_SUB && (is_set(a) || is_set(b))) return render_fail(r, "sets, as of a dict's keys, are not supported");
    if (b.type == V_UNDEFINED) return undefined_fail(r, b);
    if (op == T_ADD && a.type == b.type) {
        if (a.type == V_STRING) return add_texts(r, a, b, out);
        if (a.type == V_LIST || a.type == V_TUPLE) return add_lists(r, a, b, out);
    }
    if (op == T_MUL && is_sequence(a) && value_is_integral(b)) return repeat(r, a, value_as_int(b), out);
    if (op == T_MUL && is_sequence(b) && value_is_integral(a)) return repeat(r, b, value_as_int(a), out);
    return render_fail(r, "unsupported operand types for %s: '%s' and '%s'", names[op - T_ADD], value_type_name(a),
                       value_type_name(b));
}

/* ---- slices ---- */

static Status slice_bound(Render *r, Value v, int64_t count, int64_t otherwise, bool backward, int64_t *out)
{
    *out = otherwise;
    if (v.type == V_NONE || v.type == V_MISSING) return OK;
    if (!value_is_integral(v)) return render_fail(r, "slice indices must be integers or None, not %s", value_type_name(v));
    int64_t i = value_as_int(v);
    if (i < 0) i = i < -count ? -1 : i + count;
    if (i < 0) i = backward ? -1 : 0;
    if (i >= count) i = backward ? count - 1 : count;
    *out = i;
    return OK;
}

/* The characters start, start + step, ... of a text that isn't ASCII, or of one with a step. */
static Status slice_text(Render *r, Value text, int64_t start, int64_t step, int64_t count, Value *out)
{
    TRY(render_tick(r, text.len >> 6));
    if (step == 1) {
        size_t begin = utf8_offset(text.text, text.len, (size_t)start);
        size_t len = utf8_offset(text.text + begin, text.len - begin, (size_t)count);
        *out = value_text(text.text + begin, len);
        out->flags = text.flags;
        return OK;
    }
    int64_t   length = (int64_t)utf8_count(text.text, text.len), n = 0;
    uint32_t *offsets = arena_array(&r->arena, uint32_t, length + 1);
    for (size_t pos = 0; pos < text.len; utf8_next(text.text, text.len, &pos)) offsets[n++] = (uint32_t)pos;
    offsets[n] = text.len;
    StrBuf buf = { 0 };
    for (int64_t i = 0, at = start; i < count; i++, at += step)
        strbuf_append(&buf, text.text + offsets[at], offsets[at + 1] - offsets[at]);
    TRY(text_finish(r, &buf, out));
    out->flags = text.flags;
    return OK;
}

static Status slice_range(const Render *r, const Range *range, Range slice, Range *out)
{
    out->count = slice.count;
    bool wraps = __builtin_mul_overflow(slice.start, range->step, &out->start) ||
                 __builtin_add_overflow(out->start, range->start, &out->start) ||
                 __builtin_mul_overflow(slice.stop, range->step, &out->stop) ||
                 __builtin_add_overflow(out->stop, range->start, &out->stop) ||
                 __builtin_mul_overflow(slice.step, range->step, &out->step);
    return wraps ? overflow(r) : OK;
}

Status value_slice(Render *r, Value object, Value start_value, Value stop_value, Value step_value, Value *out)
{
    int64_t start, stop, step = 1, length;
    if (object.type == V_UNDEFINED) return undefined_fail(r, object);
    if (!is_sequence(object) && object.type != V_RANGE) return render_fail(r, "'%s' can't be sliced", value_type_name(object));
    TRY(value_length(r, object, &length));
    if (step_value.type != V_NONE && step_value.type != V_MISSING) {
        if (!value_is_integral(step_value)) return render_fail(r, "slice indices must be integers or None");
        step = value_as_int(step_value);
    }
    if (step == 0) return render_fail(r, "slice step cannot be zero");
    TRY(slice_bound(r, start_value, length, step < 0 ? length - 1 : 0, step < 0, &start));
    TRY(slice_bound(r, stop_value, length, step < 0 ? -1 : length, step < 0, &stop));
    int64_t count = 0;
    if (step > 0 && stop > start) count = (stop - start - 1) / step + 1;
    if (step < 0 && stop < start) count = (start - stop - 1) / -(step + (step == INT64_MIN)) + 1;
    if (object.type != V_RANGE && count <= 1) step = 1;
    if (object.type == V_STRING) return slice_text(r, object, count ? start : 0, step, count, out);
    if (object.type == V_RANGE) {
        *out = (Value){ .type = V_RANGE, .range = arena_new(&r->arena, Range) };
        return slice_range(r, object.range, (Range){ start, stop, step, count }, out->range);
    }
    TRY(render_tick(r, count >> 3));
    Value *items = arena_array(&r->arena, Value, count);
    for (int64_t i = 0, at = start; i < count; i++, at += step) items[i] = object.list->items[at];
    *out = value_list(r, (ValueType)object.type, items, (uint32_t)count);
    return OK;
}

/* ---- attributes and items ---- */

static Value bind_method(Render *r, Value self, uint32_t id)
{
    Method *method = arena_new(&r->arena, Method);
    *method = (Method){ self, id };
    return (Value){ .type = V_METHOD, .method = method };
}

static Value macro_attribute(Render *r, const Macro *macro, Str name)
{
    const Node *node = macro->node;
    if (str_equal(name, "name")) {
        if (node->kind != N_MACRO) return value_none();
        Str text = r->tmpl->names.names[node->name];
        return value_text(text.data, text.len);
    }
    if (str_equal(name, "catch_kwargs")) return value_bool(node->uses_kwargs);
    if (str_equal(name, "catch_varargs")) return value_bool(node->uses_varargs);
    if (str_equal(name, "caller")) return value_bool(node->uses_caller);
    if (!str_equal(name, "arguments")) return (Value){ 0 };
    Value *items = arena_array(&r->arena, Value, node->items.count);
    for (uint32_t i = 0; i < node->items.count; i++) {
        Str param = r->tmpl->names.names[node->items.items[i]->name];
        items[i] = value_text(param.data, param.len);
    }
    return value_list(r, V_TUPLE, items, node->items.count);
}

static Value plain_attribute(Render *r, Value object, Str name)
{
    switch ((ValueType)object.type) {
    case V_NAMESPACE: {
        Value v = dict_get_text(object.dict, name);
        bool  hidden = !value_is_missing(v) && name.data[0] == '_';
        return hidden ? value_undefined(UNDEF_UNSAFE, V_NAMESPACE, name.data, name.len) : v;
    }
    case V_MACRO: return macro_attribute(r, object.macro, name);
    case V_TUPLE:
        if ((object.flags & VALUE_GROUP) && str_equal(name, "grouper")) return object.list->items[0];
        if ((object.flags & VALUE_GROUP) && str_equal(name, "list")) return object.list->items[1];
        return (Value){ 0 };
    case V_FUNCTION:
        if (!str_equal(name, "fromkeys") || strcmp(template_functions[object.len].name, "dict") != 0) return (Value){ 0 };
        return bind_method(r, (Value){ .type = V_DICT, .dict = arena_new(&r->arena, Dict) }, M_fromkeys);
    case V_CYCLER:
        if (str_equal(name, "current")) return object.cycler->items.items[object.cycler->pos];
        return (Value){ 0 };
    case V_RANGE:
        if (str_equal(name, "start")) return value_int(object.range->start);
        if (str_equal(name, "step")) return value_int(object.range->step);
        if (str_equal(name, "stop")) return value_int(object.range->stop);
        return (Value){ 0 };
    case V_INT:
    case V_BOOL:
    case V_FLOAT:
        if (str_equal(name, "real")) return object.type == V_BOOL ? value_int(object.boolean) : object;
        if (str_equal(name, "imag")) return object.type == V_FLOAT ? value_float(0) : value_int(0);
        if (object.type != V_FLOAT && str_equal(name, "numerator")) return value_int(value_as_int(object));
        if (object.type != V_FLOAT && str_equal(name, "denominator")) return value_int(1);
        return (Value){ 0 };
    default: return (Value){ 0 };
    }
}

Status value_getattr_only(Render *r, Value object, uint32_t id, Str name, Value *out)
{
    const MethodTable *table = id < METHOD_COUNT ? method_table_of(object) : NULL;
    *out = (Value){ 0 };
    if (object.type == V_UNDEFINED) return undefined_fail(r, object);
    if (table && table->methods[id].name) {
        *out = table->methods[id].call ? bind_method(r, object, id)
                                       : value_undefined(UNDEF_UNSAFE, (ValueType)object.type, name.data, name.len);
        return OK;
    }
    if (object.type == V_LOOP) return loop_attribute(r, object.loop, name, out);
    *out = plain_attribute(r, object, name);
    return OK;
}

static uint32_t method_id(Str name)
{
    for (uint32_t i = 0; i < METHOD_COUNT; i++)
        if (str_equal(name, template_method_names[i])) return i;
    return METHOD_COUNT;
}

Status value_getattr(Render *r, Value object, uint32_t name, Value *out)
{
    Str text = r->tmpl->names.names[name];
    if (object.type == V_DICT) { /* the common case */
        const Builtin *method = name < METHOD_COUNT ? &template_dict_methods.methods[name] : NULL;
        if (!method || !method->name) {
            TRY(render_tick(r, object.dict->count >> 4));
            *out = dict_get_text(object.dict, text);
            if (value_is_missing(*out)) *out = value_undefined(UNDEF_ATTRIBUTE, V_DICT, text.data, text.len);
            return OK;
        }
    }
    TRY(value_getattr_only(r, object, name, text, out));
    if (value_is_missing(*out)) *out = value_undefined(UNDEF_ATTRIBUTE, (ValueType)object.type, text.data, text.len);
    return OK;
}

static Status text_item(Render *r, Value text, int64_t i, Value *out)
{
    int64_t length;
    if (i >= 0 && i < text.len && (text.flags & VALUE_ASCII)) {
        *out = value_text(text.text + i, 1);
        out->flags = text.flags;
        return OK;
    }
    TRY(value_length(r, text, &length));
    if (i < 0) i += length;
    *out = (Value){ 0 };
    if (i < 0 || i >= length) return OK;
    TRY(slice_text(r, text, i, 1, 1, out));
    out->flags = text.flags;
    return OK;
}

/* object[i] of the sequences; V_MISSING beyond the end. */
static Status sequence_item(Render *r, Value object, int64_t i, Value *out)
{
    int64_t length;
    *out = (Value){ 0 };
    if (object.type == V_STRING) return text_item(r, object, i, out);
    if (object.type != V_LIST && object.type != V_TUPLE && object.type != V_RANGE) return OK;
    TRY(value_length(r, object, &length));
    if (i < 0) i += length;
    if (i < 0 || i >= length) return OK;
    *out = object.type == V_RANGE ? value_int(object.range->start + i * object.range->step) : object.list->items[i];
    return OK;
}

Status value_getitem(Render *r, Value object, Value key, Value *out)
{
    *out = (Value){ 0 };
    if (object.type == V_UNDEFINED) return undefined_fail(r, object);
    if (object.type == V_OPEN) return open_stop(r);
    if (object.type == V_DICT) {
        TRY(dict_get(r, object.dict, key, out));
    } else if (value_is_integral(key)) {
        TRY(sequence_item(r, object, value_as_int(key), out));
    }
    if (!value_is_missing(*out)) return OK;
    if (key.type == V_STRING) {
        TRY(value_getattr_only(r, object, method_id(value_str(key)), value_str(key), out));
        if (value_is_missing(*out)) *out = value_undefined(UNDEF_ATTRIBUTE, (ValueType)object.type, key.text, key.len);
        return OK;
    }
    const char *text = value_type_name(key);
    if (key.type == V_INT) text = arena_printf(&r->arena, "%lld", (long long)key.integer);
    *out = value_undefined(UNDEF_ELEMENT, (ValueType)object.type, text, strlen(text));
    return OK;
}
