/* Any bytes parse or are refused; a parsed value is written as text that parses to the same text. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Calls every look-up on a value; each may find something only if the value has its type. */
static void look_up(const JsonValue *value)
{
    const char *text;
    int64_t     integer;
    double      number;
    bool        boolean;
    for (uint32_t i = 0; value->type == JSON_OBJECT && i < value->count && i < 16; i++) {
        const JsonMember *member = &value->members[i];
        const JsonValue  *found = json_get(value, member->key.data);
        if (strlen(member->key.data) != member->key.len) continue;
        if (!found || !*json_type_name(found->type)) abort();
        if (json_get_str(value, member->key.data, &text) && found->type != JSON_STRING) abort();
        if (json_get_int(value, member->key.data, &integer) && found->type != JSON_INT) abort();
        if (json_get_bool(value, member->key.data, &boolean) != (found->type == JSON_BOOL)) abort();
        if (json_get_double(value, member->key.data, &number) != (found->type == JSON_INT || found->type == JSON_DOUBLE)) abort();
        look_up(found);
    }
    for (uint32_t i = 0; value->type == JSON_ARRAY && i < value->count && i < 16; i++) look_up(&value->items[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena     arena = {0};
    StrBuf    first = {0}, second = {0};
    JsonValue value, again;
    int       line, column;
    if (json_parse(&arena, "fuzz", (const char *)data, size, &value) == OK) {
        json_position((const char *)data, size, value.offset, &line, &column);
        look_up(&value);
        if (json_get(NULL, "a")) abort();
        json_write(&first, &value, -1);
        if (json_parse(&arena, "again", first.data, first.len, &again) != OK) abort();
        json_write(&second, &again, -1);
        if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0) abort();
        strbuf_clear(&first);
        json_write(&first, &value, 1);
        if (json_parse(&arena, "lines", first.data, first.len, &again) != OK) abort();
    }
    strbuf_clear(&first);
    json_write_string(&first, (const char *)data, size); /* the input as a string of any bytes */
    if (json_parse(&arena, "string", first.data, first.len, &again) != OK || again.type != JSON_STRING) abort();
    double number = 0;
    if (size) memcpy(&number, data, size < sizeof number ? size : sizeof number);
    strbuf_clear(&first);
    json_write_double(&first, number);
    if (json_parse(&arena, "number", first.data, first.len, &again) != OK) abort();
    if (again.type == JSON_DOUBLE ? again.number != number : number - number == 0)
        abort(); /* a number that isn't finite is written as null */
    strbuf_deinit(&first);
    strbuf_deinit(&second);
    arena_deinit(&arena);
    return 0;
}
