/* Operators, subscripts and attributes of values. */
#include "text/template/open.h"
#include "text/template/render.h"
#include "text/template/text.h"

#include <math.h>
#include <string.h>

static _Noreturn void overflow(Render *r)
{
    render_fail(r, "an integer does not fit 64 bits, larger ones are not supported");
}

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

static int64_t int_binary(Render *r, TokenKind op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool    wraps = false;
    if (b == 0 && (op == T_FLOORDIV || op == T_MOD)) render_fail(r, "integer division or modulo by zero");
    switch (op) {
    case T_ADD:
        wraps = __builtin_add_overflow(a, b, &result);
        break;
    case T_SUB:
        wraps = __builtin_sub_overflow(a, b, &result);
        break;
    case T_MUL:
        wraps = __builtin_mul_overflow(a, b, &result);
        break;
    case T_FLOORDIV:
        wraps = a == INT64_MIN && b == -1;
        if (!wraps) result = floor_div(a, b);
        break;
    default:
        result = b == -1 ? 0 : a - floor_div(a, b) * b; /* T_MOD */
    }
    if (wraps) overflow(r);
    return result;
}

static double float_binary(Render *r, TokenKind op, double a, double b)
{
    if (b == 0 && (op == T_DIV || op == T_FLOORDIV || op == T_MOD)) render_fail(r, "division by zero");
    switch (op) {
    case T_ADD:
        return a + b;
    case T_SUB:
        return a - b;
    case T_MUL:
        return a * b;
    case T_DIV:
        return a / b;
    default:
        render_fail(r, "// and %% of floats are not supported");
    }
}

static Value number_binary(Render *r, TokenKind op, Value a, Value b)
{
    check_size(r, a);
    check_size(r, b);
    bool    integers = value_is(a, TYPES_INTEGRAL) && value_is(b, TYPES_INTEGRAL);
    int64_t i = integers ? value_as_int(a) : 0, j = integers ? value_as_int(b) : 0;
    if (integers && op == T_DIV && j != 0) return value_float((double)((long double)i / (long double)j));
    if (integers && op != T_DIV) return value_int(int_binary(r, op, i, j));
    return value_float(float_binary(r, op, value_as_float(a), value_as_float(b)));
}

static Value add_texts(Render *r, Value a, Value b)
{
    size_t begin = r->out.len;
    bool   is_markup = value_is_markup(a) || value_is_markup(b);
    print_str(r, is_markup ? value_to_markup(r, a) : a);
    print_str(r, is_markup ? value_to_markup(r, b) : b);
    Value v = text_take(r, begin);
    if (is_markup) v.flags = VALUE_MARKUP;
    return v;
}

static Value add_lists(Render *r, Value a, Value b)
{
    List sum = {.count = a.list->count + b.list->count};
    render_tick(r, sum.count >> 3);
    sum.items = arena_array(&r->arena, Value, sum.count);
    if (a.list->count) memcpy(sum.items, a.list->items, a.list->count * sizeof a);
    if (b.list->count) memcpy(sum.items + a.list->count, b.list->items, b.list->count * sizeof b);
    return value_list(r, (ValueType)a.type, sum);
}

static Value repeat(Render *r, Value sequence, int64_t times)
{
    bool   is_text = sequence.type == V_STRING;
    size_t one = is_text ? sequence.len : (size_t)sequence.list->count * sizeof(Value), total;
    if (__builtin_mul_overflow(one, (size_t)(times < 0 ? 0 : times), &total)) total = SIZE_MAX;
    text_check(r, total);
    char *bytes = arena_alloc(&r->arena, total + 1);
    for (size_t at = 0; at < total; at += one) memcpy(bytes + at, is_text ? (const void *)sequence.text : sequence.list->items, one);
    if (!is_text)
        return value_list(r, (ValueType)sequence.type, (List){.items = (Value *)(void *)bytes, .count = (uint32_t)(total / sizeof(Value))});
    Value v = value_text(bytes, total);
    v.flags = sequence.flags;
    return v;
}

static bool is_set(Value v)
{
    return v.type == V_VIEW && v.view->kind != VIEW_VALUES;
}

Value value_binary(Render *r, TokenKind op, Value a, Value b)
{
    enum { REPEATED = TYPE_STRING | TYPES_ARRAY };
    if (a.type == V_OPEN || b.type == V_OPEN) return open_binary(r, op, a, b);
    if (value_is(a, TYPES_NUMBER) && value_is(b, TYPES_NUMBER)) return number_binary(r, op, a, b);
    if (op == T_MOD && a.type == V_STRING) return format_percent(r, a, &(Args){.items = &b, .count = 1}, true);
    if (a.type == V_UNDEFINED) undefined_fail(r, a);
    if (op == T_SUB && (is_set(a) || is_set(b))) render_fail(r, "sets, as of a dict's keys, are not supported");
    if (b.type == V_UNDEFINED) undefined_fail(r, b);
    if (op == T_ADD && a.type == b.type && a.type == V_STRING) return add_texts(r, a, b);
    if (op == T_ADD && a.type == b.type && value_is(a, TYPES_ARRAY)) return add_lists(r, a, b);
    if (op == T_MUL && value_is(a, REPEATED) && value_is(b, TYPES_INTEGRAL)) return repeat(r, a, value_as_int(b));
    if (op == T_MUL && value_is(b, REPEATED) && value_is(a, TYPES_INTEGRAL)) return repeat(r, b, value_as_int(a));
    render_fail(r, "unsupported operand types for %s: '%s' and '%s'", token_texts[op], value_type_name(a), value_type_name(b));
}

static int64_t slice_bound(Render *r, Value v, int64_t count, int64_t otherwise, bool backward)
{
    if (!value_is_given(v)) return otherwise;
    if (!value_is(v, TYPES_INTEGRAL)) render_fail(r, "slice indices must be integers or None, not %s", value_type_name(v));
    int64_t i = value_as_int(v);
    if (i < 0) i = i < -count ? -1 : i + count;
    if (i < 0) return backward ? -1 : 0;
    return i < count ? i : backward ? count - 1 : count;
}

/* The `count` characters of a text at start, start + step, ... */
static Value slice_text(Render *r, Value text, int64_t start, int64_t step, int64_t count)
{
    Str    all = value_str(text);
    size_t pos = 0, begin = r->out.len;
    Value  v;
    render_tick(r, text.len >> (step == 1 ? 8 : 6));
    if (step == 1) {
        size_t from = utf8_offset(all, (size_t)start);
        v = value_text(text.text + from, utf8_offset((Str){text.text + from, text.len - from}, (size_t)count));
    } else {
        uint32_t *offsets = arena_array(&r->arena, uint32_t, utf8_count(all) + 1), n = 0;
        while (pos < all.len) {
            offsets[n++] = (uint32_t)pos;
            utf8_next(all, &pos);
        }
        offsets[n] = text.len;
        for (int64_t i = 0, at = start; i < count; i++, at += step)
            strbuf_append(&r->out, text.text + offsets[at], offsets[at + 1] - offsets[at]);
        v = text_take(r, begin);
    }
    v.flags = text.flags;
    return v;
}

Value value_slice(Render *r, Value object, const Value bounds[3])
{
    if (object.type == V_UNDEFINED) undefined_fail(r, object);
    if (!value_is(object, TYPE_STRING | TYPES_ARRAY)) render_fail(r, "'%s' can't be sliced", value_type_name(object));
    int64_t length = value_length(r, object), count = 0;
    int64_t step = value_is_given(bounds[2]) ? arg_int(r, bounds[2], "the slice step", 1) : 1;
    if (step == 0) render_fail(r, "slice step cannot be zero");
    int64_t start = slice_bound(r, bounds[0], length, step < 0 ? length - 1 : 0, step < 0);
    int64_t stop = slice_bound(r, bounds[1], length, step < 0 ? -1 : length, step < 0);
    if (step > 0 && stop > start) count = (stop - start - 1) / step + 1;
    if (step < 0 && stop < start) count = (start - stop - 1) / -(step + (step == INT64_MIN)) + 1;
    if (count <= 1) step = 1;
    if (object.type == V_STRING) return slice_text(r, object, count ? start : 0, step, count);
    render_tick(r, count >> 3);
    List part = {.items = arena_array(&r->arena, Value, count), .count = (uint32_t)count};
    for (int64_t i = 0, at = start; i < count; i++, at += step) part.items[i] = object.list->items[at];
    return value_list(r, (ValueType)object.type, part);
}

static Value bind_method(Render *r, Value self, const Builtin *builtin)
{
    Method *method = arena_new(&r->arena, Method);
    *method = (Method){self, builtin};
    return (Value){.type = V_METHOD, .method = method};
}

/* Attributes other than methods. */
static Value plain_attribute(Render *r, Value object, Str name)
{
    if (object.type == V_LOOP) return loop_attribute(r, object.loop, name);
    bool is_opaque = object.type == V_MACRO || object.type == V_FUNCTION;
    if (is_opaque) render_fail(r, "attributes of a %s are not supported", value_type_name(object));
    Value v = {0};
    if (object.type == V_NAMESPACE) {
        render_tick_dict(r, object.dict, name.len);
        v = dict_get_text(object.dict, name);
    }
    bool is_hidden = !value_is_missing(v) && name.data[0] == '_';
    return is_hidden ? value_undefined(UNDEF_UNSAFE, object, name) : v;
}

Value value_attribute(Render *r, Value object, const Builtin *methods, Str name)
{
    const Builtin *method = method_of(methods, object, name);
    if (object.type == V_UNDEFINED) undefined_fail(r, object);
    if (!method) return plain_attribute(r, object, name);
    if (method->call == missing) render_fail(r, "the method %.*s() is not supported", (int)name.len, name.data);
    return method->call != refused ? bind_method(r, object, method) : value_undefined(UNDEF_UNSAFE, object, name);
}

Value value_getattr(Render *r, Value object, const Builtin *methods, Str name)
{
    Value v;
    if (object.type == V_DICT && !method_of(methods, object, name)) {
        render_tick_dict(r, object.dict, name.len);
        render_looks_at(r, object.dict, name);
        v = dict_get_text(object.dict, name);
    } else {
        v = value_attribute(r, object, methods, name);
    }
    return value_is_missing(v) ? value_undefined(UNDEF_ATTRIBUTE, object, name) : v;
}

/* object[i] of a sequence; V_MISSING if i is out of range. */
static Value sequence_item(Render *r, Value object, int64_t i)
{
    if (!value_is(object, TYPES_INDEXED)) return (Value){0};
    int64_t length = value_length(r, object);
    if (i < 0) i += length;
    if (i < 0 || i >= length) return (Value){0};
    if (object.type == V_RANGE) return value_int(object.range->start + i * object.range->step);
    return object.type == V_STRING ? slice_text(r, object, i, 1, 1) : object.list->items[i];
}

Value value_getitem(Render *r, Value object, Value key)
{
    Value v = {0};
    if (object.type == V_UNDEFINED) undefined_fail(r, object);
    if (object.type == V_OPEN) open_stop(r);
    if (object.type == V_DICT)
        v = dict_get(r, object.dict, key);
    else if (value_is(key, TYPES_INTEGRAL))
        v = sequence_item(r, object, value_as_int(key));
    if (!value_is_missing(v)) return v;
    if (key.type == V_STRING) {
        v = value_attribute(r, object, builtin_find(template_methods, value_str(key)), value_str(key));
        return value_is_missing(v) ? value_undefined(UNDEF_ATTRIBUTE, object, value_str(key)) : v;
    }
    const char *text = key.type == V_INT ? arena_printf(&r->arena, "%lld", (long long)key.integer) : value_type_name(key);
    return value_undefined(UNDEF_ELEMENT, object, str_of(text));
}
