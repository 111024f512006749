/* Any bytes parse or are refused; what parses is written as text that parses to the same text. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena     arena = { 0 };
    StrBuf    first = { 0 }, second = { 0 };
    JsonValue value, again;
    int       line, column;
    if (json_parse(&arena, "fuzz", (const char *)data, size, &value) == OK) {
        json_position((const char *)data, size, value.offset, &line, &column);
        (void)json_get(&value, "a");
        json_write(&first, &value, -1);
        if (json_parse(&arena, "again", first.data, first.len, &again) != OK) abort();
        json_write(&second, &again, -1);
        if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0) abort();
    }
    strbuf_deinit(&first);
    strbuf_deinit(&second);
    arena_deinit(&arena);
    return 0;
}
