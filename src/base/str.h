/* What is asked of slices of text (Str); none is copied. */
#pragma once

#include "base/strbuf.h"

static inline Str strbuf_str(const StrBuf *buf) /* what it holds, until it changes */
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

Str str_trim_end(Str text); /* without the blanks at its end */
Str str_trim(Str text);     /* nor at its beginning */

/* How many bytes both begin with, or end with. */
size_t str_common(Str a, Str b);
size_t str_common_end(Str a, Str b);
