/* Values of the template language: Python's types as far as Jinja shows them. A Value has 16 bytes and is passed by value. The objects it
 * points to are in the arena of the render (constants: of the template), so none is freed by itself. */
#pragma once

#include "base/array.h"
#include "base/str.h"

#include <stdint.h>

typedef enum ValueType {
    V_MISSING, /* no value: a variable that isn't set, or an argument that isn't given */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE,
    V_ITER, /* a generator, which can be read once */
    V_VIEW, /* dict.keys(), dict.values() or dict.items() */
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_FUNCTION, /* a global function */
    V_METHOD,   /* a method bound to its object */
    V_OPEN      /* a text that a trace may not read: open.h */
} ValueType;

/* Sets of value types, as bits. */
enum {
    TYPE_BOOL = 1 << V_BOOL,
    TYPE_STRING = 1 << V_STRING,
    TYPE_LIST = 1 << V_LIST,
    TYPE_TUPLE = 1 << V_TUPLE,
    TYPE_DICT = 1 << V_DICT,
    TYPE_RANGE = 1 << V_RANGE,
    TYPE_LOOP = 1 << V_LOOP,
    TYPE_UNDEFINED = 1 << V_UNDEFINED,
    TYPE_FLOAT = 1 << V_FLOAT,
    TYPES_INTEGRAL = 1 << V_INT | TYPE_BOOL, /* bool counts as an integer, as in Python */
    TYPES_NUMBER = TYPES_INTEGRAL | TYPE_FLOAT,
    TYPES_ARRAY = TYPE_LIST | TYPE_TUPLE,
    TYPES_INDEXED = TYPE_STRING | TYPES_ARRAY | TYPE_RANGE,
    TYPES_ITERABLE = TYPES_INDEXED | TYPE_UNDEFINED | TYPE_DICT | 1 << V_ITER | 1 << V_VIEW,
    TYPES_CALLABLE = 1 << V_FUNCTION | 1 << V_METHOD | 1 << V_MACRO | TYPE_LOOP | TYPE_UNDEFINED
};

enum {
    VALUE_MARKUP = 1, /* string: it is already escaped; text that is added to it gets escaped */
    VALUE_TOO_BIG = 2 /* float: an integer of the data beyond 64 bits; using it as a number or text fails */
};

/* Why a value is undefined. The value's `text` is the undefined name (UNDEF_HINT: the message). */
typedef enum UndefinedKind { UNDEF_NAME, UNDEF_ATTRIBUTE, UNDEF_ELEMENT, UNDEF_HINT, UNDEF_UNSAFE } UndefinedKind;

typedef struct Value {
    uint8_t  type; /* ValueType */
    uint8_t  flags;
    uint16_t aux; /* V_UNDEFINED: UndefinedKind | ValueType of the object << 8 */
    uint32_t len; /* bytes of a string, or of `text` of V_UNDEFINED */
    union {
        bool                  boolean;
        int64_t               integer;
        double                number;
        const char           *text; /* UTF-8, not NUL-terminated */
        struct List          *list; /* V_LIST, V_TUPLE */
        struct Dict          *dict; /* V_DICT, V_NAMESPACE */
        struct Range         *range;
        struct LazyList      *iter;
        struct View          *view;
        struct LoopState     *loop;
        struct Macro         *macro;
        struct Method        *method;
        struct OpenText      *open;
        const struct Builtin *function;
    };
} Value;

typedef struct List {
    Value   *items;
    uint32_t count, capacity;
} List;

typedef struct DictEntry {
    Value key, value;
} DictEntry;

typedef struct Dict {
    DictEntry *entries; /* in insertion order */
    uint32_t   count, capacity;
    uint32_t   message; /* number of the message that this dict is, from 1 on; 0: it isn't a message */
} Dict;

typedef struct Range {
    int64_t start, stop, step, count;
} Range;

typedef enum ViewKind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS } ViewKind;

typedef struct View {
    Dict    *dict;
    ViewKind kind;
} View;

typedef struct Method {
    Value                 self;
    const struct Builtin *builtin;
} Method;

static inline bool value_is(Value v, uint32_t types)
{
    return types >> v.type & 1;
}
static inline Value value_none(void)
{
    return (Value){.type = V_NONE};
}
static inline Value value_bool(bool b)
{
    return (Value){.type = V_BOOL, .boolean = b};
}
static inline Value value_int(int64_t i)
{
    return (Value){.type = V_INT, .integer = i};
}
static inline Value value_float(double f)
{
    return (Value){.type = V_FLOAT, .number = f};
}
static inline Value value_dict(Dict *dict)
{
    return (Value){.type = V_DICT, .dict = dict};
}
static inline Value value_text(const char *text, size_t len)
{
    return (Value){.type = V_STRING, .len = (uint32_t)len, .text = text};
}
static inline Value value_of_str(Str text)
{
    return value_text(text.data, text.len);
}
static inline Str value_str(Value v)
{
    return (Str){v.text, v.len};
}
static inline bool value_is_missing(Value v)
{
    return v.type == V_MISSING;
}
static inline bool value_is_given(Value v)
{
    return v.type != V_MISSING && v.type != V_NONE;
}
static inline Value value_or(Value v, Value otherwise)
{
    return value_is_missing(v) ? otherwise : v;
}
static inline bool value_is_markup(Value v)
{
    return v.type == V_STRING && (v.flags & VALUE_MARKUP);
}
static inline int64_t value_as_int(Value v)
{
    return v.type == V_BOOL ? v.boolean : v.integer;
}
static inline double value_as_float(Value v)
{
    return v.type == V_FLOAT ? v.number : (double)value_as_int(v);
}
static inline Value value_undefined(UndefinedKind kind, Value object, Str name)
{
    return (Value){.type = V_UNDEFINED, .aux = (uint16_t)(kind | object.type << 8), .len = (uint32_t)name.len, .text = name.data};
}
static inline Value value_hint(const char *text)
{
    return value_undefined(UNDEF_HINT, (Value){0}, str_of(text));
}

/* How many of a name's `len` bytes messages show. */
static inline int shown(size_t len)
{
    return len < 255 ? (int)len : 255;
}

/* The name of the type in Python: "str", "dict", ... */
const char *value_type_name(Value v);
