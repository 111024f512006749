/* Writes the table of character classes as C: char_blocks[code >> 8] is the index of a block in char_classes; equal blocks are stored once.
 * Runs during the build. utf8proc knows Unicode 14; a list adds the characters of 15 and 16. */
#include "text/tokenizer_unicode.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

enum { NUM_BLOCKS = 0x1100 };

static const struct {
    char class;
    uint32_t first, last;
} newer_ranges[] = {
#define RANGE(class, first, last) {(#class)[0], first, last},
#define SCRIPT(name, first, last)
#include "text/tokenizer_unicode_ranges.def"
#undef RANGE
#undef SCRIPT
};

static bool is_white_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == 32 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

/* Symbols (So) with the property Alphabetic: circled and squared Latin letters. */
static bool is_alphabetic_symbol(uint32_t code)
{
    return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
           (code >= 0x1F170 && code <= 0x1F189);
}

/* Whether NFC changes the character when it is alone. */
static bool nfc_changes(uint32_t code)
{
    int32_t          buffer[32] = {0};
    utf8proc_uint8_t text[4];
    utf8proc_ssize_t size = utf8proc_encode_char((int32_t)code, text);
    utf8proc_ssize_t len = utf8proc_decompose(text, size, buffer, 32, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (len < 1 || len > 31) return true;
    len = utf8proc_normalize_utf32(buffer, len, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return len != 1 || buffer[0] != (int32_t)code;
}

/* True if NFC's quick check answers "no" or "maybe", or if the combining class isn't 0. */
static bool nfc_open(uint32_t code)
{
    if ((code >= 0x1161 && code <= 0x1175) || (code >= 0x11A8 && code <= 0x11C2)) return true; /* Hangul vowels, finals */
    const utf8proc_property_t *property = utf8proc_get_property((int32_t)code);
    if (property->combining_class != 0) return true;
    if (property->comb_index != UINT16_MAX && property->comb_index >= 0x8000) return true; /* composes with the character before */
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
    case UTF8PROC_CATEGORY_LO:
        flags = CHAR_LETTER | CHAR_WORD;
        break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        flags = CHAR_MARK | CHAR_WORD;
        break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
        flags = CHAR_NUMBER | CHAR_WORD;
        break;
    case UTF8PROC_CATEGORY_NO:
        flags = CHAR_NUMBER;
        break;
    case UTF8PROC_CATEGORY_PC:
        flags = CHAR_PUNCT | CHAR_WORD;
        break;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        flags = CHAR_PUNCT;
        break;
    default:
        break;
    }
    if (code > 32 && code < 127 && !(flags & (CHAR_LETTER | CHAR_NUMBER))) flags |= CHAR_PUNCT;
    if (is_white_space(code)) flags |= CHAR_SPACE;
    if (is_alphabetic_symbol(code) || code == 0x200C || code == 0x200D) flags |= CHAR_WORD;
    if (code == '\r' || code == '\n') flags |= CHAR_NEWLINE;
    if (code >= 0x300 && nfc_open(code)) flags |= CHAR_NFC_OPEN;
    return flags;
}

/* Blocks in which no character has a class: surrogates, private use, unused planes. */
static bool block_is_empty(uint32_t block)
{
    return (block >= 0xD8 && block <= 0xF8) || (block >= 0x324 && block < 0xE00) || block >= 0xE02;
}

/* Blocks of Han, Hangul and Tangut in which all characters have the same class. */
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
        if (newer_ranges[r].last >> 8 < block || newer_ranges[r].first >> 8 > block || newer_ranges[r].class == 'S') continue;
        uint8_t bits = newer_ranges[r].class == 'L'   ? CHAR_LETTER | CHAR_WORD
                       : newer_ranges[r].class == 'N' ? CHAR_NUMBER | CHAR_WORD
                       : newer_ranges[r].class == 'M' ? CHAR_MARK | CHAR_WORD
                                                      : CHAR_PUNCT;
        for (uint32_t code = newer_ranges[r].first; code <= newer_ranges[r].last; code++)
            if (code >> 8 == block) flags[code & 255] |= bits;
    }
}

static void write_bytes(const char *type, const char *name, const unsigned *values, uint32_t count)
{
    printf("static const %s %s[%u] = {", type, name, count);
    for (uint32_t i = 0; i < count; i++) printf("%s%u,", i % 32 ? "" : "\n", values[i]);
    printf("\n};\n");
}

int main(void)
{
    static uint8_t  classes[NUM_BLOCKS * 256];
    static unsigned blocks[NUM_BLOCKS], values[NUM_BLOCKS * 256];
    uint32_t        used = 0;
    for (uint32_t block = 0; block < NUM_BLOCKS; block++) {
        uint8_t *flags = classes + used * 256;
        uint32_t same = 0;
        memset(flags, 0, 256);
        if (!block_is_empty(block)) block_fill(block, flags);
        while (same < used && memcmp(classes + same * 256, flags, 256) != 0) same++;
        blocks[block] = same;
        used += same == used;
    }
    for (uint32_t i = 0; i < used * 256; i++) values[i] = classes[i];
    write_bytes("uint16_t", "char_blocks", blocks, NUM_BLOCKS);
    write_bytes("uint8_t", "char_classes", values, used * 256);
    return ferror(stdout) || fflush(stdout) != 0;
}
