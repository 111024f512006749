/* Byte streams over plain, gzip, zstd, xz and bzip2 files, which are told apart by their first bytes. Memory is bounded: bytes are read
 * into a window, which the caller scans and consumes. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

/* The longest record of any format; a longer one is an error, so that memory stays bounded. */
enum { RECORD_MAX_BYTES = 64 << 20 };

/* A compressed file is refused if it unpacks to more than EXPAND_FREE_BYTES, and to more than EXPAND_MAX_RATIO times the bytes read. */
enum { EXPAND_FREE_BYTES = 64 << 20, EXPAND_MAX_RATIO = 500 };

typedef struct StreamSource StreamSource;

typedef struct Stream {
    const char   *path; /* borrowed */
    char         *data; /* data[begin..end) is read and not consumed; the caller moves begin */
    size_t        begin, end;
    size_t        capacity;
    bool          at_end; /* nothing follows data[end) */
    StreamSource *source;
} Stream;

/* Opens a file; fails with ERR_NOT_FOUND or ERR_IO. A UTF-8 byte order mark is skipped; a UTF-16 or UTF-32 one is ERR_UNSUPPORTED. */
NODISCARD Status stream_open(const char *path, Stream *out_stream);
/* Like stream_open, for a file in memory, borrowed until stream_close; `name` is the path in errors. */
NODISCARD Status stream_open_bytes(const char *name, Str bytes, Stream *out_stream);
void             stream_close(Stream *stream); /* zero-initialised is fine */

/* Appends more bytes at data[end), or sets at_end. data may move; begin may become 0. A window of more than RECORD_MAX_BYTES
 * is an error. */
NODISCARD Status stream_more(Stream *stream);

/* Share of the file's bytes read so far, 0..1. */
double stream_fraction(const Stream *stream);

/* The next line without its \n or \r\n, valid until the next call. *out_has false: the end. */
NODISCARD Status stream_line(Stream *stream, Str *out_line, bool *out_has);
