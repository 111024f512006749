/* StrBuf: a growing byte buffer on the heap, with a NUL after its `len` bytes. Growing never fails (fatal_out_of_memory). Str: a borrowed
 * slice of text. */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct Str {
    const char *data; /* not NUL-terminated; may hold NUL bytes */
    size_t      len;  /* bytes */
} Str;

typedef struct StrBuf {
    char  *data; /* NULL while nothing was allocated; use strbuf_cstr */
    size_t len, capacity;
} StrBuf;

/* Frees the memory. There is no init function: a zero-initialised buffer is ready to use. */
void strbuf_deinit(StrBuf *buf);
void strbuf_clear(StrBuf *buf); /* sets len to 0, keeps the memory */
void strbuf_reserve(StrBuf *buf, size_t extra);
void strbuf_append(StrBuf *buf, const void *data, size_t len);
void strbuf_puts(StrBuf *buf, const char *text);
void strbuf_putc(StrBuf *buf, char c);
void strbuf_printf(StrBuf *buf, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Appends words and a newline, with line breaks so that lines have at most 80 columns. The first line continues the buffer's last line; all
 * words start at column `indent` or later. */
void        strbuf_wrapped(StrBuf *buf, int indent, const char *text);
const char *strbuf_cstr(const StrBuf *buf); /* "" if empty */

static inline Str str_of(const char *text)
{
    return (Str){text, __builtin_strlen(text)};
}
static inline bool str_equal(Str a, const char *b) /* inline, so that the compiler knows the length of a literal */
{
    size_t len = __builtin_strlen(b);
    return a.len == len && (len == 0 || __builtin_memcmp(a.data, b, len) == 0);
}

/* The first occurrence of `what` in `text`, or NULL. Faster than memmem where the first byte of `what` is frequent. */
const char *str_search(Str text, Str what);

/* Formats bytes as "12.50 MiB"; returns `out`. */
const char *size_text(int64_t bytes, char out[32]);

/* Number of bytes to insert, delete, replace or swap with a neighbour to turn one text into the other; texts are cut at 63 bytes. */
int edit_distance(const char *a, const char *b);

/* The entry of names[0..count) nearest to `text` by edit distance, or NULL if none is near enough to suggest. */
const char *nearest_name(const char *text, const char *const *names, size_t count);
/* nearest_name as the end of a message: `lead` and "did you mean NAME?", or "" if there is none. Valid until this thread's next call. */
const char *did_you_mean(const char *lead, const char *text, const char *const *names, size_t count);

/* Finds the index of `name` in names[0..count). ERR_INVALID: "there is no WHAT NAME ...; expected one of ...". */
NODISCARD Status find_name(const char *what, const char *name, const char *const *names, size_t count, int *out_index);
