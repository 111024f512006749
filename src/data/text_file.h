/* A whole text file in memory: plain ones mapped, gzip and zstd ones unpacked. */
#pragma once

#include "base/strbuf.h"
#include "files/file.h"

typedef struct TextFile {
    Str     text; /* without a byte order mark */
    FileMap map;
    StrBuf  unpacked;
} TextFile;

/* ERR_INVALID for what is no text: a .parquet file, NUL bytes. A warning tells that rows, as of a .jsonl file, are taken as text. */
NODISCARD Status text_file_open(const char *path, TextFile *out);
NODISCARD Status text_file_open_rows(const char *path, TextFile *out); /* without it: rows are what is wanted */
void             text_file_close(TextFile *file);
