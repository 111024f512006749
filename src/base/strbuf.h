/* StrBuf: a growing byte buffer on the heap, always NUL-terminated past `len`. Growth never fails
 * (fatal_out_of_memory). Str: a borrowed slice. */
#pragma once

#include "base/status.h"

#include <stdint.h>

typedef struct Str {
    const char *data; /* not NUL-terminated; may hold NUL bytes */
    size_t      len;  /* bytes */
} Str;

typedef struct StrBuf {
    char  *data; /* NULL while empty; use strbuf_cstr */
    size_t len, capacity;
} StrBuf;

/* Zero-initialised is ready to use. */
void strbuf_deinit(StrBuf *buf);
void strbuf_clear(StrBuf *buf); /* keeps the memory */
void strbuf_reserve(StrBuf *buf, size_t extra);
void strbuf_append(StrBuf *buf, const void *data, size_t len);
void strbuf_puts(StrBuf *buf, const char *text);
void strbuf_putc(StrBuf *buf, char c);
void strbuf_printf(StrBuf *buf, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Words, within 80 columns of the line that has begun and of those behind it, which begin at `indent`; then a line's end. */
void        strbuf_wrapped(StrBuf *buf, int indent, const char *text);
const char *strbuf_cstr(const StrBuf *buf); /* "" while empty */

static inline Str str_of(const char *text)
{
    return (Str){text, __builtin_strlen(text)};
}
static inline bool str_equal(Str a, const char *b) /* here, so that a literal's length and comparison are the compiler's */
{
    size_t len = __builtin_strlen(b);
    return a.len == len && (len == 0 || __builtin_memcmp(a.data, b, len) == 0);
}

/* The first place of `what` in `text`, or NULL. Faster than memmem on texts where its first letter is frequent. */
const char *str_search(Str text, Str what);

/* Bytes as "12.50 MiB"; returns `out`. */
const char *size_text(int64_t bytes, char out[32]);

/* Letters to insert, delete, replace, or swap with a neighbour to make one of the other; texts are cut at 63 bytes. */
int edit_distance(const char *a, const char *b);

/* The entry of `names` (count) nearest to `text` by edit distance, or NULL when none is near enough to suggest. */
const char *nearest_name(const char *text, const char *const *names, size_t count);
/* The same as the end of a message: "" or `lead`, "did you mean NAME?". Valid until this thread's next call. */
const char *did_you_mean(const char *lead, const char *text, const char *const *names, size_t count);

/* The index of `name` among `names`; ERR_INVALID: "there is no WHAT NAME ...; expected one of ...". */
NODISCARD Status find_name(const char *what, const char *name, const char *const *names, size_t count, int *out_index);
