/* Capacity grows by half again. */
#include "base/strbuf.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_deinit(StrBuf *buf)
{
    free(buf->data);
    *buf = (StrBuf){ 0 };
}

void strbuf_clear(StrBuf *buf)
{
    buf->len = 0;
    if (buf->data) buf->data[0] = 0;
}

void strbuf_reserve(StrBuf *buf, size_t extra)
{
    if (extra > SIZE_MAX / 4 - buf->len) fatal_out_of_memory(extra);
    size_t need = buf->len + extra + 1;
    if (need <= buf->capacity) return;
    size_t capacity = buf->capacity + buf->capacity / 2;
    if (capacity < need) capacity = need;
    if (capacity < 64) capacity = 64;
    char *data = realloc(buf->data, capacity);
    if (!data) fatal_out_of_memory(capacity);
    buf->data = data;
    buf->capacity = capacity;
}

void strbuf_append(StrBuf *buf, const void *data, size_t len)
{
    strbuf_reserve(buf, len);
    if (len) memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    buf->data[buf->len] = 0;
}

void strbuf_puts(StrBuf *buf, const char *text)
{
    strbuf_append(buf, text, strlen(text));
}

void strbuf_putc(StrBuf *buf, char c)
{
    strbuf_append(buf, &c, 1);
}

void strbuf_printf(StrBuf *buf, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    CHECK(n >= 0);
    strbuf_reserve(buf, (size_t)n);
    vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, again);
    va_end(again);
    buf->len += (size_t)n;
}

const char *strbuf_cstr(const StrBuf *buf)
{
    return buf->data ? buf->data : "";
}

bool str_equal(Str a, const char *b)
{
    return a.len == strlen(b) && (a.len == 0 || memcmp(a.data, b, a.len) == 0);
}

/* Letters, as bits that differ for the letters of names. */
static uint64_t letters_of(const char *text, size_t len)
{
    uint64_t letters = 0;
    for (size_t i = 0; i < len; i++) letters |= (uint64_t)1 << (text[i] & 63);
    return letters;
}

/* Damerau-Levenshtein, restricted: no letter is edited twice. From `limit` on it may stop at any number above. */
static int distance_below(const char *a, const char *b, int limit)
{
    enum { MOST = 64 };
    int      row[3][MOST];
    size_t   m = strnlen(a, MOST - 1), n = strnlen(b, MOST - 1);
    int     *before = row[0], *last = row[1], *now = row[2], last_least = 0;
    uint64_t in_a = letters_of(a, m), in_b = letters_of(b, n);
    if (__builtin_popcountll(in_a & ~in_b) >= limit || __builtin_popcountll(in_b & ~in_a) >= limit)
        return limit; /* each of them is an edit */
    for (size_t j = 0; j <= n; j++) before[j] = last[j] = (int)j;
    for (size_t i = 1; i <= m; i++) {
        int least = now[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
            if (best < least) least = best;
        }
        if (least >= limit && last_least >= limit) return limit; /* each row comes of the two before it */
        last_least = least;
        int *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[n];
}

int edit_distance(const char *a, const char *b)
{
    return distance_below(a, b, INT_MAX);
}

const char *nearest_name(const char *text, const char *const *names, size_t count)
{
    const char *best = NULL;
    int         len = (int)strlen(text), least = len / 3 + 2;
    for (size_t i = 0; i < count; i++) {
        if (abs((int)strlen(names[i]) - len) >= least) continue; /* each missing letter is an edit */
        int distance = distance_below(text, names[i], least);
        if (distance < least) {
            least = distance;
            best = names[i];
        }
    }
    return best;
}
