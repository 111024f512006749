/* Capacity grows by half. */
#include "base/strbuf.h"
#include "base/avx2.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_deinit(StrBuf *buf)
{
    free(buf->data);
    *buf = (StrBuf){0};
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
    char *data = realloc_or_end(buf->data, capacity);
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

void strbuf_wrapped(StrBuf *buf, int indent, const char *text)
{
    enum { COLUMNS = 80 };
    int at = 0;
    while ((size_t)at < buf->len && buf->data[buf->len - 1 - (size_t)at] != '\n') at++;
    for (const char *word = text; *word; word += strspn(word, " ")) {
        int len = (int)strcspn(word, " "), gap = at < indent ? indent - at : at > indent;
        if (at > indent && at + gap + len > COLUMNS) {
            strbuf_putc(buf, '\n');
            at = 0, gap = indent;
        }
        strbuf_printf(buf, "%*s%.*s", gap, "", len, word);
        at += gap + len;
        word += len;
    }
    strbuf_putc(buf, '\n');
}

const char *strbuf_cstr(const StrBuf *buf)
{
    return buf->data ? buf->data : "";
}

/* For patterns up to SHORT_BYTES: compares the first and last byte at 32 positions at once, then the whole pattern where both match. */
const char *str_search(Str text, Str what)
{
    enum { SHORT_BYTES = 64 };
    if (what.len == 0) return text.data;
    if (what.len > text.len) return NULL;
    if (what.len > SHORT_BYTES) return memmem(text.data, text.len, what.data, what.len);
    const char   *at = text.data, *stop = text.data + (text.len - what.len) + 1; /* a match begins before `stop` */
    const __m256i first = _mm256_set1_epi8(what.data[0]), last = _mm256_set1_epi8(what.data[what.len - 1]);
    for (; stop - at >= 32; at += 32) {
        __m256i  a = _mm256_loadu_si256((const __m256i *)at), b = _mm256_loadu_si256((const __m256i *)(at + what.len - 1));
        __m256i  both = _mm256_and_si256(_mm256_cmpeq_epi8(a, first), _mm256_cmpeq_epi8(b, last));
        uint32_t places = (uint32_t)_mm256_movemask_epi8(both);
        for (; places; places &= places - 1) {
            const char *place = at + __builtin_ctz(places);
            if (memcmp(place, what.data, what.len) == 0) return place;
        }
    }
    return at < stop ? memmem(at, (size_t)(text.data + text.len - at), what.data, what.len) : NULL;
}

const char *size_text(int64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double                   value = (double)bytes;
    int                      unit = 0;
    for (; value >= 1024 && unit < 4; unit++) value /= 1024;
    snprintf(out, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return out;
}

enum { MOST_LETTERS = 63 };

/* Positions of each byte value in a text, as a bit mask. */
typedef struct LetterPlaces {
    uint64_t of[256];
    int      len;
} LetterPlaces;

static void letter_places(const char *text, LetterPlaces *out)
{
    *out = (LetterPlaces){.len = (int)strnlen(text, MOST_LETTERS)};
    for (int i = 0; i < out->len; i++) out->of[(unsigned char)text[i]] |= (uint64_t)1 << i;
}

/* Computes the edit distance table one column at a time (Hyyro 2003). Bit i of `up` (`down`): row i + 1 is one more (less) than row i. Bit
 * i of `same`: row i + 1 equals row i of the previous column. */
static int distance_to(const LetterPlaces *a, const char *b)
{
    uint64_t up = UINT64_MAX, down = 0, same = 0, before = 0;
    int      distance = a->len;
    if (a->len == 0) return (int)strnlen(b, MOST_LETTERS);
    for (int j = 0; b[j] && j < MOST_LETTERS; j++) {
        uint64_t here = a->of[(unsigned char)b[j]], swapped = ((~same & here) << 1) & before;
        same = (((here & up) + up) ^ up) | here | down | swapped;
        uint64_t right_up = down | ~(same | up), right_down = same & up;
        distance += (int)(right_up >> (a->len - 1) & 1) - (int)(right_down >> (a->len - 1) & 1);
        right_up = right_up << 1 | 1;
        right_down <<= 1;
        up = right_down | ~(same | right_up);
        down = right_up & same;
        before = here;
    }
    return distance;
}

int edit_distance(const char *a, const char *b)
{
    LetterPlaces places;
    letter_places(a, &places);
    return distance_to(&places, b);
}

const char *nearest_name(const char *text, const char *const *names, size_t count)
{
    const char  *best = NULL;
    int          len = (int)strlen(text), least = len ? len / 5 + 2 : 0;
    LetterPlaces places;
    letter_places(text, &places);
    for (size_t i = 0; i < count; i++) {
        if (abs((int)strlen(names[i]) - len) >= least) continue; /* a difference in length is at least as many edits */
        int distance = distance_to(&places, names[i]);
        if (distance < least) {
            least = distance;
            best = names[i];
        }
    }
    return best;
}

const char *did_you_mean(const char *lead, const char *text, const char *const *names, size_t count)
{
    static _Thread_local char hint[512];
    const char               *near = nearest_name(text, names, count);
    snprintf(hint, sizeof hint, "%sdid you mean %s?", lead, near ? near : "");
    return near ? hint : "";
}

Status find_name(const char *what, const char *name, const char *const *names, size_t count, int *out_index)
{
    for (size_t i = 0; i < count; i++) {
        *out_index = (int)i;
        if (strcmp(names[i], name) == 0) return OK;
    }
    StrBuf all = {0};
    for (size_t i = 0; i < count; i++) strbuf_printf(&all, "%s%s", i ? ", " : "", names[i]);
    Status status = status_fail(ERR_INVALID, "there is no %s %s%s; expected one of %s", what, name, did_you_mean(", ", name, names, count),
                                strbuf_cstr(&all));
    strbuf_deinit(&all);
    return status;
}
