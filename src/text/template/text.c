/* Character classes come from utf8proc's tables; what Unicode says beyond simple case mappings (SpecialCasing.txt) is
 * the table below. */
#define _GNU_SOURCE /* memmem */
#include "text/template/text.h"
#include "text/tokenizer_unicode.h"

#include <string.h>
#include <utf8proc.h>

uint32_t utf8_next(const char *text, size_t len, size_t *pos)
{
    const unsigned char *s = (const unsigned char *)text + *pos;
    size_t               left = len - *pos;
    if (s[0] < 0x80 || left < 2) {
        *pos += 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *pos += 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0 && left >= 3) {
        *pos += 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    if (left < 4) {
        *pos = len;
        return 0xFFFD;
    }
    *pos += 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

size_t utf8_count(const char *text, size_t len)
{
    size_t count = 0;
    for (size_t i = 0; i < len; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

size_t utf8_offset(const char *text, size_t len, size_t count)
{
    size_t i = 0;
    for (; i < len; i++) {
        if (((unsigned char)text[i] & 0xC0) == 0x80) continue;
        if (count-- == 0) break;
    }
    return i;
}

bool utf8_is_valid(const char *text, size_t len)
{
    size_t pos = 0;
    while (pos < len) {
        if ((unsigned char)text[pos] < 0x80) {
            pos++;
            continue;
        }
        utf8proc_int32_t   cp;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + pos, (utf8proc_ssize_t)(len - pos), &cp);
        if (n <= 0) return false;
        pos += (size_t)n;
    }
    return true;
}

bool text_is_ascii(const char *text, size_t len)
{
    unsigned char all = 0;
    for (size_t i = 0; i < len; i++) all |= (unsigned char)text[i];
    return all < 0x80;
}

bool cp_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 31);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool cp_is_alpha(uint32_t cp)
{
    if (cp < 0x80) return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool cp_is_decimal(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

/* Every script's decimal digits stand in a row, 0 to 9, perhaps behind another row of ten. */
uint32_t cp_decimal_value(uint32_t cp)
{
    uint32_t before = 0;
    while (cp_is_decimal(cp - 1 - before)) before++;
    return before % 10;
}

/* Unicode's Numeric_Type=Digit outside of Nd. */
bool cp_is_digit(uint32_t cp)
{
    static const uint32_t ranges[][2] = {
        { 0xB2, 0xB3 }, { 0xB9, 0xB9 }, { 0x1369, 0x1371 }, { 0x19DA, 0x19DA }, { 0x2070, 0x2070 }, { 0x2074, 0x2079 },
        { 0x2080, 0x2089 }, { 0x2460, 0x2468 }, { 0x2474, 0x247C }, { 0x2488, 0x2490 }, { 0x24EA, 0x24EA },
        { 0x24F5, 0x24FD }, { 0x24FF, 0x24FF }, { 0x2776, 0x277E }, { 0x2780, 0x2788 }, { 0x278A, 0x2792 },
        { 0x10A40, 0x10A43 }, { 0x10E60, 0x10E68 }, { 0x11052, 0x1105A }, { 0x1F100, 0x1F10A },
    };
    if (cp_is_decimal(cp)) return true;
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (cp >= ranges[i][0] && cp <= ranges[i][1]) return true;
    return false;
}

/* Ideographs with Numeric_Type=Numeric. */
static bool cp_is_numeral_ideograph(uint32_t cp)
{
    static const uint32_t list[] = {
        0x3405, 0x3483, 0x382A, 0x3B4D, 0x4E00, 0x4E03, 0x4E07, 0x4E09, 0x4E5D, 0x4E8C, 0x4E94, 0x4E96, 0x4EBF, 0x4EC0,
        0x4EDF, 0x4EE8, 0x4F0D, 0x4F70, 0x5104, 0x5146, 0x5169, 0x516B, 0x516D, 0x5341, 0x5343, 0x5344, 0x5345, 0x534C,
        0x53C1, 0x53C2, 0x53C3, 0x53C4, 0x56DB, 0x58F1, 0x58F9, 0x5E7A, 0x5EFE, 0x5EFF, 0x5F0C, 0x5F0D, 0x5F0E, 0x5F10,
        0x62FE, 0x634C, 0x67D2, 0x6F06, 0x7396, 0x767E, 0x8086, 0x842C, 0x8CAE, 0x8CB3, 0x8D30, 0x9621, 0x9646, 0x964C,
        0x9678, 0x96F6, 0xF96B, 0xF973, 0xF978, 0xF9B2, 0xF9D1, 0xF9D3, 0xF9FD, 0x2F890,
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (cp == list[i]) return true;
    return false;
}

bool cp_is_numeric(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO ||
           cp_is_numeral_ideograph(cp);
}

bool cp_is_alnum(uint32_t cp)
{
    if (cp < 0x80) return cp_is_alpha(cp) || (cp >= '0' && cp <= '9');
    return cp_is_alpha(cp) || cp_is_numeric(cp);
}

bool cp_is_lower(uint32_t cp)
{
    return utf8proc_islower((utf8proc_int32_t)cp);
}

bool cp_is_upper(uint32_t cp)
{
    return utf8proc_isupper((utf8proc_int32_t)cp);
}

bool cp_is_title(uint32_t cp)
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

bool cp_is_identifier(uint32_t cp, bool first)
{
    if (cp < 0x80) return cp_is_alpha(cp) || cp == '_' || (!first && cp >= '0' && cp <= '9');
    utf8proc_category_t c = category(cp);
    if (cp_is_alpha(cp) || c == UTF8PROC_CATEGORY_NL) return true;
    return !first && (c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ND ||
                      c == UTF8PROC_CATEGORY_PC || cp == 0xB7);
}

/* Code points whose upper or title case is several: {code point, upper, title}. */
static const struct {
    uint32_t    cp;
    const char *upper, *title;
} special_case[] = {
    { 0xDF, "SS", "Ss" }, { 0x149, "\312\274N", "\312\274N" }, { 0x1F0, "J\314\214", "J\314\214" },
    { 0x390, "\316\231\314\210\314\201", "\316\231\314\210\314\201" },
    { 0x3B0, "\316\245\314\210\314\201", "\316\245\314\210\314\201" },
    { 0x587, "\324\265\325\222", "\324\265\326\202" }, { 0x1E96, "H\314\261", "H\314\261" },
    { 0x1E97, "T\314\210", "T\314\210" }, { 0x1E98, "W\314\212", "W\314\212" }, { 0x1E99, "Y\314\212", "Y\314\212" },
    { 0x1E9A, "A\312\276", "A\312\276" }, { 0x1F50, "\316\245\314\223", "\316\245\314\223" },
    { 0x1F52, "\316\245\314\223\314\200", "\316\245\314\223\314\200" },
    { 0x1F54, "\316\245\314\223\314\201", "\316\245\314\223\314\201" },
    { 0x1F56, "\316\245\314\223\315\202", "\316\245\314\223\315\202" },
    { 0x1F80, "\341\274\210\316\231", "\341\276\210" }, { 0x1F81, "\341\274\211\316\231", "\341\276\211" },
    { 0x1F82, "\341\274\212\316\231", "\341\276\212" }, { 0x1F83, "\341\274\213\316\231", "\341\276\213" },
    { 0x1F84, "\341\274\214\316\231", "\341\276\214" }, { 0x1F85, "\341\274\215\316\231", "\341\276\215" },
    { 0x1F86, "\341\274\216\316\231", "\341\276\216" }, { 0x1F87, "\341\274\217\316\231", "\341\276\217" },
    { 0x1F88, "\341\274\210\316\231", "\341\276\210" }, { 0x1F89, "\341\274\211\316\231", "\341\276\211" },
    { 0x1F8A, "\341\274\212\316\231", "\341\276\212" }, { 0x1F8B, "\341\274\213\316\231", "\341\276\213" },
    { 0x1F8C, "\341\274\214\316\231", "\341\276\214" }, { 0x1F8D, "\341\274\215\316\231", "\341\276\215" },
    { 0x1F8E, "\341\274\216\316\231", "\341\276\216" }, { 0x1F8F, "\341\274\217\316\231", "\341\276\217" },
    { 0x1F90, "\341\274\250\316\231", "\341\276\230" }, { 0x1F91, "\341\274\251\316\231", "\341\276\231" },
    { 0x1F92, "\341\274\252\316\231", "\341\276\232" }, { 0x1F93, "\341\274\253\316\231", "\341\276\233" },
    { 0x1F94, "\341\274\254\316\231", "\341\276\234" }, { 0x1F95, "\341\274\255\316\231", "\341\276\235" },
    { 0x1F96, "\341\274\256\316\231", "\341\276\236" }, { 0x1F97, "\341\274\257\316\231", "\341\276\237" },
    { 0x1F98, "\341\274\250\316\231", "\341\276\230" }, { 0x1F99, "\341\274\251\316\231", "\341\276\231" },
    { 0x1F9A, "\341\274\252\316\231", "\341\276\232" }, { 0x1F9B, "\341\274\253\316\231", "\341\276\233" },
    { 0x1F9C, "\341\274\254\316\231", "\341\276\234" }, { 0x1F9D, "\341\274\255\316\231", "\341\276\235" },
    { 0x1F9E, "\341\274\256\316\231", "\341\276\236" }, { 0x1F9F, "\341\274\257\316\231", "\341\276\237" },
    { 0x1FA0, "\341\275\250\316\231", "\341\276\250" }, { 0x1FA1, "\341\275\251\316\231", "\341\276\251" },
    { 0x1FA2, "\341\275\252\316\231", "\341\276\252" }, { 0x1FA3, "\341\275\253\316\231", "\341\276\253" },
    { 0x1FA4, "\341\275\254\316\231", "\341\276\254" }, { 0x1FA5, "\341\275\255\316\231", "\341\276\255" },
    { 0x1FA6, "\341\275\256\316\231", "\341\276\256" }, { 0x1FA7, "\341\275\257\316\231", "\341\276\257" },
    { 0x1FA8, "\341\275\250\316\231", "\341\276\250" }, { 0x1FA9, "\341\275\251\316\231", "\341\276\251" },
    { 0x1FAA, "\341\275\252\316\231", "\341\276\252" }, { 0x1FAB, "\341\275\253\316\231", "\341\276\253" },
    { 0x1FAC, "\341\275\254\316\231", "\341\276\254" }, { 0x1FAD, "\341\275\255\316\231", "\341\276\255" },
    { 0x1FAE, "\341\275\256\316\231", "\341\276\256" }, { 0x1FAF, "\341\275\257\316\231", "\341\276\257" },
    { 0x1FB2, "\341\276\272\316\231", "\341\276\272\315\205" }, { 0x1FB3, "\316\221\316\231", "\341\276\274" },
    { 0x1FB4, "\316\206\316\231", "\316\206\315\205" }, { 0x1FB6, "\316\221\315\202", "\316\221\315\202" },
    { 0x1FB7, "\316\221\315\202\316\231", "\316\221\315\202\315\205" },
    { 0x1FBC, "\316\221\316\231", "\341\276\274" }, { 0x1FC2, "\341\277\212\316\231", "\341\277\212\315\205" },
    { 0x1FC3, "\316\227\316\231", "\341\277\214" }, { 0x1FC4, "\316\211\316\231", "\316\211\315\205" },
    { 0x1FC6, "\316\227\315\202", "\316\227\315\202" },
    { 0x1FC7, "\316\227\315\202\316\231", "\316\227\315\202\315\205" },
    { 0x1FCC, "\316\227\316\231", "\341\277\214" },
    { 0x1FD2, "\316\231\314\210\314\200", "\316\231\314\210\314\200" },
    { 0x1FD3, "\316\231\314\210\314\201", "\316\231\314\210\314\201" },
    { 0x1FD6, "\316\231\315\202", "\316\231\315\202" },
    { 0x1FD7, "\316\231\314\210\315\202", "\316\231\314\210\315\202" },
    { 0x1FE2, "\316\245\314\210\314\200", "\316\245\314\210\314\200" },
    { 0x1FE3, "\316\245\314\210\314\201", "\316\245\314\210\314\201" },
    { 0x1FE4, "\316\241\314\223", "\316\241\314\223" }, { 0x1FE6, "\316\245\315\202", "\316\245\315\202" },
    { 0x1FE7, "\316\245\314\210\315\202", "\316\245\314\210\315\202" },
    { 0x1FF2, "\341\277\272\316\231", "\341\277\272\315\205" }, { 0x1FF3, "\316\251\316\231", "\341\277\274" },
    { 0x1FF4, "\316\217\316\231", "\316\217\315\205" }, { 0x1FF6, "\316\251\315\202", "\316\251\315\202" },
    { 0x1FF7, "\316\251\315\202\316\231", "\316\251\315\202\315\205" },
    { 0x1FFC, "\316\251\316\231", "\341\277\274" }, { 0xFB00, "FF", "Ff" }, { 0xFB01, "FI", "Fi" },
    { 0xFB02, "FL", "Fl" }, { 0xFB03, "FFI", "Ffi" }, { 0xFB04, "FFL", "Ffl" }, { 0xFB05, "ST", "St" },
    { 0xFB06, "ST", "St" }, { 0xFB13, "\325\204\325\206", "\325\204\325\266" },
    { 0xFB14, "\325\204\324\265", "\325\204\325\245" }, { 0xFB15, "\325\204\324\273", "\325\204\325\253" },
    { 0xFB16, "\325\216\325\206", "\325\216\325\266" }, { 0xFB17, "\325\204\324\275", "\325\204\325\255" },
};

static void put_cp(StrBuf *out, uint32_t cp)
{
    char   bytes[4];
    size_t n = utf8_encode(cp, bytes);
    strbuf_append(out, bytes, n);
}

static void put_upper(StrBuf *out, uint32_t cp, bool title)
{
    if (cp >= 0x80) {
        for (size_t i = 0; i < sizeof special_case / sizeof special_case[0]; i++) {
            if (special_case[i].cp != cp) continue;
            strbuf_puts(out, title ? special_case[i].title : special_case[i].upper);
            return;
        }
    }
    put_cp(out, (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)cp) : utf8proc_toupper((utf8proc_int32_t)cp)));
}

/* Unicode's Case_Ignorable, near enough: marks, modifiers, formats, and the word-medial punctuation. */
static bool is_case_ignorable(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    if (c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
        c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK)
        return true;
    return cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x387 || cp == 0x55F || cp == 0x5F4 ||
           cp == 0x2018 || cp == 0x2019 || cp == 0x2024 || cp == 0x2027 || cp == 0xFE13 || cp == 0xFE52 || cp == 0xFE55 ||
           cp == 0xFF07 || cp == 0xFF0E || cp == 0xFF1A;
}

/* A sigma at [begin, end) is final when a cased letter stands before it and none after, ignorable ones skipped. */
static bool is_final_sigma(Str text, size_t begin, size_t end)
{
    bool   before = false;
    size_t pos = begin;
    while (pos > 0) {
        do pos--;
        while (pos > 0 && ((unsigned char)text.data[pos] & 0xC0) == 0x80);
        size_t   at = pos;
        uint32_t cp = utf8_next(text.data, text.len, &at);
        if (is_case_ignorable(cp)) continue;
        before = cp_is_cased(cp);
        break;
    }
    if (!before) return false;
    for (pos = end; pos < text.len;) {
        uint32_t cp = utf8_next(text.data, text.len, &pos);
        if (!is_case_ignorable(cp)) return !cp_is_cased(cp);
    }
    return true;
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

static void put_folded(StrBuf *out, uint32_t cp)
{
    enum { MOST = 4 }; /* the longest folding has 3 */
    utf8proc_int32_t folded[MOST];
    int              boundclass = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, folded, MOST, UTF8PROC_CASEFOLD, &boundclass);
    for (utf8proc_ssize_t i = 0; i < n; i++) put_cp(out, (uint32_t)folded[i]);
}

static void map_ascii(StrBuf *out, Str text, CaseMap map)
{
    bool cased = false;
    strbuf_reserve(out, text.len);
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z', up = false;
        if (map == CASE_UPPER) up = true;
        if (map == CASE_TITLE) up = !cased;
        if (map == CASE_SWAP) up = lower;
        if (map == CASE_CAPITALIZE) up = i == 0;
        cased = lower || upper;
        if (cased) c = up ? (char)(c & ~32) : (char)(c | 32);
        out->data[out->len++] = c;
    }
    out->data[out->len] = 0;
}

void text_map_case(StrBuf *out, Str text, CaseMap map)
{
    if (text_is_ascii(text.data, text.len)) {
        map_ascii(out, text, map);
        return;
    }
    bool cased = false;
    for (size_t pos = 0; pos < text.len;) {
        size_t   begin = pos;
        uint32_t cp = utf8_next(text.data, text.len, &pos);
        bool     up = map == CASE_UPPER || (map == CASE_TITLE && !cased) || (map == CASE_CAPITALIZE && begin == 0) ||
                  (map == CASE_SWAP && cp_is_lower(cp));
        bool     keep = map == CASE_SWAP && !cp_is_lower(cp) && !cp_is_upper(cp);
        if (keep) {
            put_cp(out, cp);
        } else if (map == CASE_FOLD) {
            put_folded(out, cp);
        } else if (up) {
            put_upper(out, cp, map == CASE_TITLE || map == CASE_CAPITALIZE);
        } else {
            put_lower(out, cp, text, begin, pos);
        }
        cased = cp_is_cased(cp);
    }
}

Str text_strip(Str text, bool left, bool right)
{
    size_t begin = 0, end = text.len;
    while (left && begin < end) {
        size_t next = begin;
        if (!cp_is_space(utf8_next(text.data, end, &next))) break;
        begin = next;
    }
    while (right && end > begin) {
        size_t last = end - 1;
        while (last > begin && ((unsigned char)text.data[last] & 0xC0) == 0x80) last--;
        size_t at = last;
        if (!cp_is_space(utf8_next(text.data, end, &at))) break;
        end = last;
    }
    return (Str){ text.data + begin, end - begin };
}

static bool has_char(Str chars, Str one)
{
    return text_find(chars, one, 0) != SIZE_MAX;
}

Str text_strip_chars(Str text, Str chars, bool left, bool right)
{
    size_t begin = 0, end = text.len;
    while (left && begin < end) {
        size_t next = begin;
        utf8_next(text.data, end, &next);
        if (!has_char(chars, (Str){ text.data + begin, next - begin })) break;
        begin = next;
    }
    while (right && end > begin) {
        size_t last = end - 1;
        while (last > begin && ((unsigned char)text.data[last] & 0xC0) == 0x80) last--;
        if (!has_char(chars, (Str){ text.data + last, end - last })) break;
        end = last;
    }
    return (Str){ text.data + begin, end - begin };
}

size_t text_find(Str text, Str needle, size_t from)
{
    if (from > text.len || needle.len > text.len - from) return SIZE_MAX;
    if (needle.len == 0) return from;
    const char *hit = str_search((Str){ text.data + from, text.len - from }, needle);
    return hit ? (size_t)(hit - text.data) : SIZE_MAX;
}

size_t text_find_last(Str text, Str needle)
{
    if (needle.len > text.len) return SIZE_MAX;
    for (size_t at = text.len - needle.len + 1; at-- > 0;)
        if (needle.len == 0 || memcmp(text.data + at, needle.data, needle.len) == 0) return at;
    return SIZE_MAX;
}
