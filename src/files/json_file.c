/* See json_file.h. */
#include "files/json_file.h"

#include "base/scoped.h"

Status json_file_read(Arena *arena, const char *path, size_t max_bytes, JsonValue *out)
{
    Str text;
    TRY(file_read(arena, path, max_bytes, &text));
    return json_parse(arena, path, text.data, text.len, out);
}

Status json_file_read_if_there(Arena *arena, const char *path, size_t max_bytes, JsonValue *out)
{
    bool is_there;
    *out = (JsonValue){.type = JSON_NULL};
    TRY(file_exists(path, &is_there));
    return is_there ? json_file_read(arena, path, max_bytes, out) : OK;
}

Status json_file_write(const char *path, const JsonValue *value)
{
    SCOPED_STRBUF(text);
    json_write(&text, value, 2);
    strbuf_putc(&text, '\n');
    return file_write_atomic(path, text.data, text.len);
}
