/* Files that hold one JSON document. */
#pragma once

#include "base/json.h"
#include "files/file.h"

/* Reads a file of at most max_bytes and parses it; errors name the file. */
NODISCARD Status json_file_read(Arena *arena, const char *path, size_t max_bytes, JsonValue *out);
/* The same; *out is null where there is no such file. */
NODISCARD Status json_file_read_if_there(Arena *arena, const char *path, size_t max_bytes, JsonValue *out);

/* Writes a document whole or not at all, two spaces a level, a line's end behind it. */
NODISCARD Status json_file_write(const char *path, const JsonValue *value);
