/* JSON: a strict RFC 8259 reader into an arena, with positions, and a writer into a StrBuf.
 *
 * Reading: duplicate keys, trailing text, NaN, comments, nesting beyond JSON_MAX_DEPTH and bytes that are not UTF-8
 * are errors. A \u0000 is kept (strings carry their length); a lone surrogate escape becomes U+FFFD. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

enum { JSON_MAX_DEPTH = 256 };

typedef enum JsonType { JSON_NULL, JSON_BOOL, JSON_INT, JSON_DOUBLE, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

typedef struct JsonValue  JsonValue;
typedef struct JsonMember JsonMember;

struct JsonValue {
    JsonType type;
    uint32_t count;  /* items of an array, members of an object; 1 of a JSON_DOUBLE that was written as an integer: it has digits */
    size_t   offset; /* of its last byte in the text: for json_position */
    union {
        bool    boolean;
        int64_t integer; /* JSON_INT: written without fraction and exponent, fits int64 */
        struct {
            double      number; /* JSON_DOUBLE; of JSON_NULL 0, or the number that json_parse_row read as null */
            const char *digits; /* where count is 1: the integer as it was written, in the arena */
        };
        Str         string;  /* NUL follows, in the arena: where a copy of the document was */
        JsonValue  *items;   /* JSON_ARRAY */
        JsonMember *members; /* JSON_OBJECT, in file order */
    };
};

struct JsonMember {
    Str       key;
    JsonValue value;
};

/* Parses one document that fills text[0..len). `name` (a path, kept by reference only during the call) starts the
 * error: "name:line:column: what". */
NODISCARD Status json_parse(Arena *arena, const char *name, const char *text, size_t len, JsonValue *out);

/* The same of a row of data, as Python writes it: NaN, Infinity, -Infinity and real numbers beyond a double are null, whose
 * `number` says which; a whole number beyond a double has an infinite `number` beside its digits. */
NODISCARD Status json_parse_row(Arena *arena, const char *name, const char *text, size_t len, JsonValue *out);

/* 1-based line and column (in bytes) of a byte offset. */
void json_position(const char *text, size_t len, size_t offset, int *line, int *column);

/* NULL when absent or when `object` is no object. Linear: for objects of few members. */
const JsonValue               *json_find(const JsonValue *object, Str key);
static inline const JsonValue *json_get(const JsonValue *object, const char *key)
{
    return json_find(object, str_of(key)); /* here, so that the length of a literal is none of the run's work */
}

/* Typed look-ups: false (and *out untouched) when absent or of another type. json_get_double takes integers too. */
bool json_get_str(const JsonValue *object, const char *key, const char **out); /* false too when it holds NUL bytes */
bool json_get_int(const JsonValue *object, const char *key, int64_t *out);
bool json_get_double(const JsonValue *object, const char *key, double *out);
bool json_get_bool(const JsonValue *object, const char *key, bool *out);

const char *json_type_name(JsonType type);

/* Writes "text" quoted and escaped; bytes that aren't UTF-8 become U+FFFD. */
void json_write_string(StrBuf *out, const char *text, size_t len);
/* Shortest text that reads back to the same double, as Python has it; NaN and infinities are written as null. */
void json_write_double(StrBuf *out, double value);
/* The value again as JSON. indent < 0: one line; else that many spaces a level. Key order is kept, and so are whole numbers of any
 * length. */
void json_write(StrBuf *out, const JsonValue *value, int indent);
