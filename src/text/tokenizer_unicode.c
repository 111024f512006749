/* Character classes from utf8proc, computed once a tokenizer: asking utf8proc per character is several times slower
 * than one look into a table that fits the cache. */
#include "text/tokenizer_unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { NUM_BLOCKS = 0x1100 };

static const struct {
    char     class;
    uint32_t first, last;
} newer_ranges[] = {
#define RANGE(class, first, last) { (#class)[0], first, last },
#include "text/tokenizer_unicode_ranges.def"
#undef RANGE
};

static bool is_white_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == 32 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

/* Symbols (So) with the property Alphabetic: circled and squared Latin letters. */
static bool is_alphabetic_symbol(uint32_t code)
{
    return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
           (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

/* True when NFC of the character alone is another text. */
static bool nfc_changes(uint32_t code)
{
    int32_t          buffer[32] = { 0 };
    utf8proc_uint8_t text[4];
    utf8proc_ssize_t size = utf8proc_encode_char((int32_t)code, text);
    utf8proc_ssize_t len = utf8proc_decompose(text, size, buffer, 32, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (len < 1 || len > 31) return true;
    len = utf8proc_normalize_utf32(buffer, len, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return len != 1 || buffer[0] != (int32_t)code;
}

/* Yes for NFC's quick check answers "no" and "maybe", and for every combining class but 0. */
static bool nfc_open(uint32_t code)
{
    if ((code >= 0x1161 && code <= 0x1175) || (code >= 0x11A8 && code <= 0x11C2))
        return true; /* Hangul vowels, finals */
    const utf8proc_property_t *property = utf8proc_get_property((int32_t)code);
    if (property->combining_class != 0) return true;
    if (property->comb_index != UINT16_MAX && property->comb_index >= 0x8000) return true; /* joins the one before */
    return property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0 && nfc_changes(code);
}

static uint8_t flags_of(uint32_t code)
{
    uint8_t flags = 0;
    switch (utf8proc_category((int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: flags = CHAR_LETTER | CHAR_WORD; break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: flags = CHAR_MARK | CHAR_WORD; break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL: flags = CHAR_NUMBER | CHAR_WORD; break;
    case UTF8PROC_CATEGORY_NO: flags = CHAR_NUMBER; break;
    case UTF8PROC_CATEGORY_PC: flags = CHAR_PUNCT | CHAR_WORD; break;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: flags = CHAR_PUNCT; break;
    default: break;
    }
    if (code > 32 && code < 127 && !(flags & (CHAR_LETTER | CHAR_NUMBER))) flags |= CHAR_PUNCT;
    if (is_white_space(code)) flags |= CHAR_SPACE;
    if (is_alphabetic_symbol(code) || code == 0x200C || code == 0x200D) flags |= CHAR_WORD;
    if (code == '\r' || code == '\n') flags |= CHAR_NEWLINE;
    if (code >= 0x300 && nfc_open(code)) flags |= CHAR_NFC_OPEN;
    return flags;
}

/* Blocks without any character that has a class: surrogates, private use, planes not in use. */
static bool block_is_empty(uint32_t block)
{
    return (block >= 0xD8 && block <= 0xF8) || (block >= 0x324 && block < 0xE00) || block >= 0xE02;
}

/* Blocks of Han, Hangul and Tangut in which all characters are alike. */
static bool block_is_uniform(uint32_t block)
{
    return (block >= 0x34 && block <= 0x4C) || (block >= 0x4E && block <= 0x9E) || (block >= 0xAC && block <= 0xD6) ||
           (block >= 0x170 && block <= 0x186) || (block >= 0x200 && block <= 0x2A5);
}

static void block_fill(uint32_t block, uint8_t flags[256])
{
    if (block_is_uniform(block)) {
        memset(flags, flags_of(block * 256), 256);
        return;
    }
    for (uint32_t i = 0; i < 256; i++) flags[i] = flags_of(block * 256 + i);
    for (size_t r = 0; r < sizeof newer_ranges / sizeof newer_ranges[0]; r++) {
        if (newer_ranges[r].last >> 8 < block || newer_ranges[r].first >> 8 > block) continue;
        uint8_t bits = newer_ranges[r].class == 'L'   ? CHAR_LETTER | CHAR_WORD
                       : newer_ranges[r].class == 'N' ? CHAR_NUMBER | CHAR_WORD
                       : newer_ranges[r].class == 'M' ? CHAR_MARK | CHAR_WORD
                                                      : CHAR_PUNCT;
        for (uint32_t code = newer_ranges[r].first; code <= newer_ranges[r].last; code++)
            if (code >> 8 == block) flags[code & 255] |= bits;
    }
}

static uint64_t block_sum(const uint8_t flags[256])
{
    uint64_t sum = 0, part;
    for (int i = 0; i < 256; i += 8) {
        memcpy(&part, flags + i, 8);
        sum = (sum ^ part) * 0x9E3779B97F4A7C15u;
    }
    return sum;
}

void char_table_build(Arena *arena, CharTable *out_table)
{
    uint8_t *all = malloc((size_t)NUM_BLOCKS * 256);
    if (!all) fatal_out_of_memory((size_t)NUM_BLOCKS * 256);
    size_t   used = 0;
    uint64_t sums[NUM_BLOCKS];
    out_table->block = arena_array(arena, uint16_t, NUM_BLOCKS);
    for (uint32_t block = 0; block < NUM_BLOCKS; block++) {
        uint8_t *flags = all + used * 256;
        if (block_is_empty(block)) {
            memset(flags, 0, 256);
        } else {
            block_fill(block, flags);
        }
        size_t same = used; /* the newest blocks are the likeliest twins */
        sums[used] = block_sum(flags);
        while (same > 0 && (sums[same - 1] != sums[used] || memcmp(all + (same - 1) * 256, flags, 256) != 0)) same--;
        out_table->block[block] = (uint16_t)(same > 0 ? same - 1 : used);
        if (same == 0) used++;
    }
    out_table->flags = arena_alloc(arena, used * 256);
    memcpy(out_table->flags, all, used * 256);
    free(all);
}

size_t utf8_encode(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 63));
        out[2] = (char)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 63));
    out[2] = (char)(0x80 | (code >> 6 & 63));
    out[3] = (char)(0x80 | (code & 63));
    return 4;
}

/* Bytes of a well-formed character at text[0], or 0; then *out_bad is the ill-formed part's bytes and *out_cut_short
 * tells that only the end of the text stopped it. Unicode table 3-7. */
static size_t utf8_check(const char *text, size_t len, size_t *out_bad, bool *out_cut_short)
{
    const uint8_t *b = (const uint8_t *)text;
    *out_bad = 1;
    *out_cut_short = false;
    if (b[0] < 0x80) return 1;
    if (b[0] < 0xC2 || b[0] > 0xF4) return 0;
    size_t  size = utf8_size(b[0]);
    uint8_t least = b[0] == 0xE0 ? 0xA0 : b[0] == 0xF0 ? 0x90 : 0x80;
    uint8_t most = b[0] == 0xED ? 0x9F : b[0] == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < size; i++) {
        *out_bad = i;
        if (i == len) {
            *out_cut_short = true;
            return 0;
        }
        if (b[i] < least || b[i] > most) return 0;
        least = 0x80;
        most = 0xBF;
    }
    return size;
}

size_t utf8_valid_prefix(const char *text, size_t len)
{
    size_t i = 0, bad;
    bool   cut_short;
    while (i < len) {
        uint64_t eight;
        while (len - i >= 8 && (memcpy(&eight, text + i, 8), (eight & 0x8080808080808080u) == 0)) i += 8;
        if (i == len) break;
        size_t size = utf8_check(text + i, len - i, &bad, &cut_short);
        if (size == 0) break;
        i += size;
    }
    return i;
}

size_t utf8_bad_size(const char *text, size_t len, bool *out_cut_short)
{
    size_t bad;
    utf8_check(text, len, &bad, out_cut_short);
    return bad;
}

void utf8_append_repaired(StrBuf *out, const char *text, size_t len)
{
    while (len > 0) {
        bool   cut_short;
        size_t good = utf8_valid_prefix(text, len);
        strbuf_append(out, text, good);
        text += good;
        len -= good;
        if (len == 0) break;
        size_t bad = utf8_bad_size(text, len, &cut_short);
        strbuf_append(out, "\xEF\xBF\xBD", 3);
        text += bad;
        len -= bad;
    }
}

/* Bytes that print as themselves in Latin-1 keep their value; the other 68 take 256, 257, ... in order. */
static bool byte_prints(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t byte_to_char(uint8_t byte)
{
    if (byte_prints(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    if (byte <= 160) return 256u + 33 + (byte - 127u);
    return 323; /* 173, the soft hyphen */
}

int char_to_byte(uint32_t code)
{
    if (code < 256) return byte_prints((int)code) ? (int)code : -1;
    if (code <= 256 + 32) return (int)code - 256;
    if (code <= 322) return (int)code - 256 - 33 + 127;
    return code == 323 ? 173 : -1;
}
