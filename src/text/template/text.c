/* Python's text functions. Character classes are from utf8proc's tables. put_upper adds the case mappings of SpecialCasing.txt, where a
 * character maps to several. */
#define _GNU_SOURCE /* memmem */
#include "text/template/text.h"

#include <string.h>
#include <utf8proc.h>

bool cp_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 31);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool cp_is_decimal(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool cp_is_other_number(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_NO;
}

static bool cp_is_lower(uint32_t cp)
{
    return utf8proc_islower((utf8proc_int32_t)cp);
}

static bool cp_is_upper(uint32_t cp)
{
    return utf8proc_isupper((utf8proc_int32_t)cp);
}

static bool cp_is_title(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LT;
}

static bool cp_is_cased(uint32_t cp)
{
    return cp_is_lower(cp) || cp_is_upper(cp) || cp_is_title(cp);
}

bool cp_is_printable(uint32_t cp)
{
    if (cp < 0x7F) return cp >= 0x20;
    utf8proc_category_t c = category(cp);
    return c != UTF8PROC_CATEGORY_CN && !(c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_CO);
}

static void put_cp(StrBuf *out, uint32_t cp)
{
    char   bytes[4];
    size_t n = utf8_encode(cp, bytes);
    strbuf_append(out, bytes, n);
}

enum { MOST_FOLDED = 4 }; /* the longest case folding has 3 code points */

static int folded(uint32_t cp, utf8proc_int32_t out[MOST_FOLDED])
{
    int boundclass = 0;
    return (int)utf8proc_decompose_char((utf8proc_int32_t)cp, out, MOST_FOLDED, UTF8PROC_CASEFOLD, &boundclass);
}

/* Appends the upper case of a character. If its case folding has several characters, these are mapped to upper case (as in Unicode's
 * SpecialCasing.txt). In titles only the first of these characters is mapped, and an iota that was below its letter becomes U+0345, which
 * stays below. */
static void put_upper(StrBuf *out, uint32_t cp, bool title)
{
    enum { APOSTROPHE_N = 0x149, SHARP_S = 0xDF, IOTA = 0x3B9, IOTA_BELOW = 0x345, GREEK_EXTENDED = 0x1F00 };
    utf8proc_int32_t codes[MOST_FOLDED], single = (utf8proc_int32_t)cp;
    single = title ? utf8proc_totitle(single) : utf8proc_toupper(single);
    bool has_single = cp_is_upper(cp) || (title && cp != SHARP_S && ((uint32_t)single != cp || cp_is_title(cp)));
    int  n = cp < 0x80 || has_single ? 1 : folded(cp, codes);
    if (n <= 1) {
        put_cp(out, (uint32_t)single);
        return;
    }
    for (int i = 0; i < n; i++) {
        bool is_capital = i == 0 || !title || cp == APOSTROPHE_N;
        if (!is_capital && codes[i] == IOTA && cp >= GREEK_EXTENDED && cp < 0x2000) codes[i] = IOTA_BELOW;
        put_cp(out, (uint32_t)(is_capital ? utf8proc_toupper(codes[i]) : codes[i]));
    }
}

/* Whether the sigma at [begin, end) is final: a cased letter is before it and none after it. */
static bool is_final_sigma(Str text, size_t begin, size_t end)
{
    size_t before = begin ? utf8_back(text.data, begin) : 0;
    bool   follows = begin && cp_is_cased(utf8_next(text, &before));
    return follows && !(end < text.len && cp_is_cased(utf8_next(text, &end)));
}

static void put_lower(StrBuf *out, uint32_t cp, Str text, size_t begin, size_t end)
{
    if (cp == 0x3A3) {
        put_cp(out, is_final_sigma(text, begin, end) ? 0x3C2 : 0x3C3);
    } else if (cp == 0x130) {
        strbuf_puts(out, "i\xCC\x87");
    } else {
        put_cp(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
    }
}

void text_map_case(StrBuf *out, Str text, CaseMap map)
{
    bool cased = false;
    for (size_t pos = 0; pos < text.len;) {
        size_t   begin = pos;
        uint32_t cp = utf8_next(text, &pos);
        if (map == CASE_UPPER || (map == CASE_TITLE && !cased) || (map == CASE_CAPITALIZE && begin == 0))
            put_upper(out, cp, map != CASE_UPPER);
        else
            put_lower(out, cp, text, begin, pos);
        cased = cp_is_cased(cp);
    }
}

/* Whether to strip the single character `one`: it is one of `chars`, or, if chars.data is NULL, white space. */
static bool is_stripped(Str one, Str chars)
{
    size_t pos = 0;
    return chars.data ? text_find(chars, one, 0) != SIZE_MAX : cp_is_space(utf8_next(one, &pos));
}

Str text_strip_chars(Str text, Str chars, bool left, bool right)
{
    while (left && text.len) {
        size_t next = 0;
        utf8_next(text, &next);
        if (!is_stripped((Str){text.data, next}, chars)) break;
        text = (Str){text.data + next, text.len - next};
    }
    while (right && text.len) {
        size_t last = utf8_back(text.data, text.len);
        if (!is_stripped((Str){text.data + last, text.len - last}, chars)) break;
        text.len = last;
    }
    return text;
}

Str text_strip(Str text, bool left, bool right)
{
    return text_strip_chars(text, (Str){0}, left, right);
}

size_t text_find(Str text, Str needle, size_t from)
{
    if (from > text.len || needle.len > text.len - from) return SIZE_MAX;
    if (needle.len == 0) return from;
    const char *hit = str_search((Str){text.data + from, text.len - from}, needle);
    return hit ? (size_t)(hit - text.data) : SIZE_MAX;
}

size_t text_find_last(Str text, Str needle)
{
    if (needle.len > text.len) return SIZE_MAX;
    for (size_t at = text.len - needle.len + 1; at-- > 0;)
        if (needle.len == 0 || memcmp(text.data + at, needle.data, needle.len) == 0) return at;
    return SIZE_MAX;
}
