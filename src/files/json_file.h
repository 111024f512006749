/* Files that hold one JSON document. */
#pragma once

#include "base/json.h"
#include "files/file.h"

/* Reads a file of at most max_bytes and parses it; errors name the file. */
NODISCARD Status json_file_read(Arena *arena, const char *path, size_t max_bytes, JsonValue *out);
/* Like json_file_read, but if the file doesn't exist, *out is JSON null. */
NODISCARD Status json_file_read_if_there(Arena *arena, const char *path, size_t max_bytes, JsonValue *out);

/* Writes a document, whole or not at all, indented by two spaces a level, with a line feed at the end. */
NODISCARD Status json_file_write(const char *path, const JsonValue *value);
