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
    uint32_t count;  /* number of items (array) or members (object); 1: a JSON_DOUBLE that was written as an integer, see `digits` */
    size_t   offset; /* offset in the text of the value's last byte, for json_position */
    union {
        bool    boolean;
        int64_t integer; /* JSON_INT: written without fraction and exponent, fits int64 */
        struct {
            double      number; /* JSON_DOUBLE: its value; JSON_NULL: 0, or the number that json_parse_row read as null */
            const char *digits; /* only if count is 1: the integer as written, in the arena */
        };
        Str         string;  /* JSON_STRING, in the arena; a NUL follows */
        JsonValue  *items;   /* JSON_ARRAY */
        JsonMember *members; /* JSON_OBJECT, in file order */
    };
};

struct JsonMember {
    Str       key;
    JsonValue value;
};

/* Parses the one document in text[0..len). `name` (a path, used only during the call) is the beginning of an error message:
 * "name:line:column: what". */
NODISCARD Status json_parse(Arena *arena, const char *name, const char *text, size_t len, JsonValue *out);

/* As json_parse, but accepts rows of data as Python writes them. NaN, Infinity, -Infinity and non-integers too large for a double become
 * JSON_NULL, with the value in `number`. An integer too large for a double becomes a JSON_DOUBLE with an infinite `number`; `digits` keeps
 * it. */
NODISCARD Status json_parse_row(Arena *arena, const char *name, const char *text, size_t len, JsonValue *out);

/* Converts a byte offset to a line and a column, which count from 1; the column counts bytes. */
void json_position(const char *text, size_t len, size_t offset, int *line, int *column);

/* The member with this key; NULL if there is none or `object` isn't an object. Linear search: for objects of few members. */
const JsonValue               *json_find(const JsonValue *object, Str key);
static inline const JsonValue *json_get(const JsonValue *object, const char *key)
{
    return json_find(object, str_of(key)); /* inline, so that the length of a literal is computed at compile time */
}

/* Typed look-ups: false (and *out untouched) if the member is absent or has another type. json_get_double accepts integers too. */
bool json_get_str(const JsonValue *object, const char *key, const char **out); /* also false if the string contains a NUL */
bool json_get_int(const JsonValue *object, const char *key, int64_t *out);
bool json_get_double(const JsonValue *object, const char *key, double *out);
bool json_get_bool(const JsonValue *object, const char *key, bool *out);

const char *json_type_name(JsonType type);

/* Writes "text" quoted and escaped; bytes that aren't UTF-8 become U+FFFD. */
void json_write_string(StrBuf *out, const char *text, size_t len);
/* Writes the shortest text that reads back to the same double, in Python's notation; NaN and infinities become null. */
void json_write_double(StrBuf *out, double value);
/* Writes the value as JSON. indent < 0: on one line; else the number of spaces per level. Keeps the order of keys, and integers of any
 * length. */
void json_write(StrBuf *out, const JsonValue *value, int indent);
