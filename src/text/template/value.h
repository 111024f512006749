/* Values of the template language: Python's types as far as Jinja shows them. 16 bytes by value; what they point to lies
 * in the arena of the render (or of the template, for constants), so nothing is ever freed alone. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef enum ValueType {
    V_MISSING, /* no value: an unset variable, an argument that was not given */
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
    V_ITER,      /* a generator: read once */
    V_VIEW,      /* dict.keys(), values(), items() */
    V_NAMESPACE,
    V_LOOP,
    V_MACRO,
    V_FUNCTION,  /* a global function */
    V_METHOD,    /* bound to its object */
    V_CYCLER,
    V_JOINER,
    V_OPEN       /* a text that nothing may look at: template_open.h */
} ValueType;

enum {
    VALUE_MARKUP = 1,  /* of a string: escaped text; what is added to it gets escaped */
    VALUE_ASCII = 2,   /* of a string: known to be ASCII, so that characters are bytes */
    VALUE_GROUP = 4,   /* of a tuple: from groupby, with attributes grouper and list */
    VALUE_TOO_BIG = 8  /* of a float: an integer of the data beyond 64 bits; it has no text and can't be reckoned with */
};

/* Why a value is undefined; the name is in `text`. */
typedef enum UndefinedKind { UNDEF_NAME, UNDEF_ATTRIBUTE, UNDEF_ELEMENT, UNDEF_HINT, UNDEF_UNSAFE } UndefinedKind;

typedef struct List      List;
typedef struct Dict      Dict;
typedef struct Range     Range;
typedef struct LazyList  LazyList;
typedef struct View      View;
typedef struct LoopState LoopState;
typedef struct Macro     Macro;
typedef struct Method    Method;
typedef struct Cycler    Cycler;
typedef struct OpenText  OpenText;

typedef struct Value {
    uint8_t  type; /* ValueType */
    uint8_t  flags;
    uint16_t aux;  /* of V_UNDEFINED: UndefinedKind | ValueType of the object << 8 */
    uint32_t len;  /* bytes of a string or of an undefined's name; index of a function */
    union {
        bool        boolean;
        int64_t     integer;
        double      number;
        const char *text; /* UTF-8, not NUL-terminated */
        List       *list; /* list, tuple */
        Dict       *dict; /* dict, namespace */
        Range      *range;
        LazyList   *iter;
        View       *view;
        LoopState  *loop;
        Macro      *macro;
        Method     *method;
        Cycler     *cycler; /* cycler, joiner */
        OpenText   *open;
    };
} Value;

struct List {
    Value   *items;
    uint32_t count;
};

typedef struct DictEntry {
    Value key, value;
} DictEntry;

struct Dict {
    DictEntry *entries; /* in the order of insertion */
    uint32_t   count, capacity;
};

struct Range {
    int64_t start, stop, step, count;
};

typedef enum ViewKind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS } ViewKind;

struct View {
    Dict    *dict;
    ViewKind kind;
};

struct Method {
    Value    self;
    uint32_t id; /* MethodId */
};

struct Cycler {
    Value    text;    /* of a joiner */
    List     items;   /* of a cycler */
    uint32_t pos;     /* a joiner: 1 after its first use */
};

static inline Value value_none(void) { return (Value){ .type = V_NONE }; }
static inline Value value_bool(bool b) { return (Value){ .type = V_BOOL, .boolean = b }; }
static inline Value value_int(int64_t i) { return (Value){ .type = V_INT, .integer = i }; }
static inline Value value_float(double f) { return (Value){ .type = V_FLOAT, .number = f }; }
static inline Value value_text(const char *text, size_t len)
{
    return (Value){ .type = V_STRING, .len = (uint32_t)len, .text = text };
}
static inline Str value_str(Value v) { return (Str){ v.text, v.len }; }
static inline bool value_is_missing(Value v) { return v.type == V_MISSING; }
/* int and bool are Python's integers. */
static inline bool value_is_integral(Value v) { return v.type == V_INT || v.type == V_BOOL; }
static inline int64_t value_as_int(Value v) { return v.type == V_BOOL ? v.boolean : v.integer; }
static inline bool value_is_number(Value v) { return value_is_integral(v) || v.type == V_FLOAT; }
static inline double value_as_float(Value v) { return v.type == V_FLOAT ? v.number : (double)value_as_int(v); }
static inline Value value_undefined(UndefinedKind kind, ValueType object, const char *name, size_t len)
{
    return (Value){ .type = V_UNDEFINED, .aux = (uint16_t)(kind | (unsigned)object << 8), .len = (uint32_t)len, .text = name };
}
#define value_hint(text) value_undefined(UNDEF_HINT, V_NONE, (text), sizeof(text) - 1)

static inline bool str_same(Str a, Str b)
{
    return a.len == b.len && (a.len == 0 || __builtin_memcmp(a.data, b.data, a.len) == 0);
}

/* Python's name of the type: "str", "dict", ... */
const char *value_type_name(Value v);
