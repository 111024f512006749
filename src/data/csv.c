/* CSV as in RFC 4180, and a little more: line ends may be LF or CRLF, the delimiter any byte; fields may hold any bytes. */
#include "data/record.h"

#include "base/array.h"

#include <string.h>

typedef struct CsvFields {
    Arena     *arena;
    JsonValue *items;
    uint32_t   count, capacity;
} CsvFields;

/* Appends a field. `text` is in the arena and ends with a NUL after `len` bytes. */
static void push_field(CsvFields *fields, const char *text, size_t len)
{
    fields->items = arena_room(fields->arena, fields->items, fields->count + 1, &fields->capacity, sizeof *fields->items);
    fields->items[fields->count++] = (JsonValue){.type = JSON_STRING, .string = {text, len}};
}

/* Reads a quoted field. *at: its opening quote; afterwards, the byte after its closing quote. */
static Status quoted_field(CsvFields *fields, Str bytes, size_t *at)
{
    size_t start = *at + 1, end = start, len = 0;
    bool   is_closed = false;
    for (; end < bytes.len; end++) {
        if (bytes.data[end] != '"') continue;
        is_closed = end + 1 >= bytes.len || bytes.data[end + 1] != '"';
        if (is_closed) break;
        end++;
    }
    FAIL_IF(!is_closed, ERR_INVALID, "column %zu: the quote that opens here is never closed", start);
    char *text = arena_alloc(fields->arena, end - start + 1);
    for (size_t i = start; i < end; i++) {
        i += bytes.data[i] == '"'; /* keep one quote of a doubled one */
        text[len++] = bytes.data[i];
    }
    text[len] = 0;
    push_field(fields, text, len);
    *at = end + 1;
    return OK;
}

Status csv_parse(Arena *arena, Str bytes, char delimiter, JsonValue *out)
{
    CsvFields fields = {.arena = arena};
    size_t    at = 0;
    for (;;) {
        if (at < bytes.len && bytes.data[at] == '"') {
            TRY(quoted_field(&fields, bytes, &at));
            FAIL_IF(at < bytes.len && bytes.data[at] != delimiter, ERR_INVALID,
                    "column %zu: a closing quote must be followed by '%c' or the line's end; write a quote in a field as \"\"", at,
                    delimiter);
        } else {
            const char *end = at < bytes.len ? memchr(bytes.data + at, delimiter, bytes.len - at) : NULL;
            size_t      len = end ? (size_t)(end - bytes.data) - at : bytes.len - at;
            const char *quote = len ? memchr(bytes.data + at, '"', len) : NULL;
            FAIL_IF(quote, ERR_INVALID, "column %zu: a quote inside a field that doesn't start with one", (size_t)(quote - bytes.data) + 1);
            push_field(&fields, arena_strndup(arena, bytes.data + at, len), len);
            at += len;
        }
        if (at >= bytes.len) break;
        at++;
    }
    *out = (JsonValue){.type = JSON_ARRAY, .count = fields.count, .items = fields.items};
    return OK;
}
