/* A file that only grows. What is added goes to the kernel at once: however the program ends, only the last addition can be torn. What a
 * full disk didn't take waits, and is written before the next addition. */
#pragma once

#include "base/strbuf.h"

typedef struct AppendFile {
    int         fd;      /* -1: none */
    const char *path;    /* for messages; borrowed */
    int64_t     bytes;   /* in the file */
    StrBuf      waiting; /* bytes that come after them */
} AppendFile;

/* Writes all that waits. Where that fails nothing of it is in the file, and all of it goes on waiting. */
NODISCARD Status append_write(AppendFile *file);
/* The same, and the file is on the disk. */
NODISCARD Status append_sync(AppendFile *file);
/* Tries to write what waits; status_message() stays as it is. */
void append_close(AppendFile *file);
