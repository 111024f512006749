/* A whole text file in memory: a plain one is mapped, a compressed one unpacked. */
#pragma once

#include "base/strbuf.h"
#include "files/file.h"

typedef struct TextFile {
    Str     text; /* the text, without a byte order mark */
    FileMap map;
    StrBuf  unpacked;
} TextFile;

/* ERR_INVALID: the file isn't text: it is a .parquet file, or has NUL bytes. Warns if a file of rows, such as .jsonl, is taken as text. */
NODISCARD Status text_file_open(const char *path, TextFile *out);
NODISCARD Status text_file_open_rows(const char *path, TextFile *out); /* does not warn: for callers that want rows */
void             text_file_close(TextFile *file);
