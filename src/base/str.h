/* Functions on slices of text (Str); none copies the text. */
#pragma once

#include "base/strbuf.h"

static inline Str strbuf_str(const StrBuf *buf) /* the buffer's content; valid until the buffer changes */
{
    return (Str){strbuf_cstr(buf), buf->len};
}

static inline Str str_slice(Str text, size_t begin, size_t end) /* bytes [begin, end) */
{
    return (Str){text.data + begin, end - begin};
}

static inline bool str_same(Str a, Str b)
{
    return a.len == b.len && (a.len == 0 || __builtin_memcmp(a.data, b.data, a.len) == 0);
}

static inline bool str_starts(Str text, Str begin)
{
    return text.len >= begin.len && str_same((Str){text.data, begin.len}, begin);
}

static inline bool str_ends(Str text, Str end)
{
    return text.len >= end.len && (end.len == 0 || __builtin_memcmp(text.data + text.len - end.len, end.data, end.len) == 0);
}

static inline bool byte_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

Str str_trim_end(Str text); /* removes blanks at the end */
Str str_trim(Str text);     /* removes blanks at both ends */

/* str_common: length in bytes of the common prefix. str_common_end: length in bytes of the common suffix. */
size_t str_common(Str a, Str b);
size_t str_common_end(Str a, Str b);
