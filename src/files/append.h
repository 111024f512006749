/* A file that only grows. Added bytes go to the kernel at once: however the program ends, only the last addition can be torn. Bytes that a
 * full disk didn't take wait, and are written before the next addition. */
#pragma once

#include "base/strbuf.h"

typedef struct AppendFile {
    int         fd;      /* -1: not open */
    const char *path;    /* for messages; borrowed */
    int64_t     bytes;   /* length of the file, without bytes of a failed write */
    StrBuf      waiting; /* bytes to append to the file */
} AppendFile;

/* Writes all waiting bytes. On failure the file holds none of them, and all keep waiting. */
NODISCARD Status append_write(AppendFile *file);
/* Writes all waiting bytes and syncs the file to disk. */
NODISCARD Status append_sync(AppendFile *file);
/* Tries to write the waiting bytes, then closes the file; status_message() stays as it is. */
void append_close(AppendFile *file);
