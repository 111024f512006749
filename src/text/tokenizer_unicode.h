/* Unicode for tokenizers: UTF-8 validation and iteration, and a table of character classes. */
#pragma once

#include "base/strbuf.h"

#include <stdint.h>

/* Character classes, as bits. */
enum {
    CHAR_LETTER = 1,    /* general category L* */
    CHAR_NUMBER = 2,    /* N* */
    CHAR_SPACE = 4,     /* property White_Space */
    CHAR_MARK = 8,      /* M* */
    CHAR_PUNCT = 16,    /* P* and the ASCII symbols */
    CHAR_WORD = 32,     /* \w in a Unicode regex: Alphabetic, M*, Nd, Pc, joiners */
    CHAR_NFC_OPEN = 64, /* NFC may change it or join it to the character before */
    CHAR_NEWLINE = 128  /* CR or LF */
};

/* Two levels: blocks of 256 code points; equal blocks are shared, so that the table (about 60 KB) stays in cache. */
typedef struct CharTable {
    const uint16_t *block; /* [code point >> 8]: index of the block */
    const uint8_t  *flags; /* [block * 256 + low byte]: CHAR_ bits */
} CharTable;

/* The table of all characters, made from utf8proc (Unicode 14) and the additions of Unicode 15 to 16. */
extern const CharTable char_table;

static inline uint8_t char_flags(const CharTable *table, uint32_t code)
{
    return table->flags[(size_t)table->block[code >> 8] * 256 + (code & 255)];
}

/* Length in bytes of a character whose first byte is `lead`, in valid UTF-8. */
static inline size_t utf8_size(uint8_t lead)
{
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Decodes the character at p, in valid UTF-8; *out_size: its length in bytes. */
static inline uint32_t utf8_decode(const char *p, size_t *out_size)
{
    const uint8_t *b = (const uint8_t *)p;
    if (b[0] < 0x80) {
        *out_size = 1;
        return b[0];
    }
    if (b[0] < 0xE0) {
        *out_size = 2;
        return (uint32_t)(b[0] & 31) << 6 | (b[1] & 63);
    }
    if (b[0] < 0xF0) {
        *out_size = 3;
        return (uint32_t)(b[0] & 15) << 12 | (uint32_t)(b[1] & 63) << 6 | (b[2] & 63);
    }
    *out_size = 4;
    return (uint32_t)(b[0] & 7) << 18 | (uint32_t)(b[1] & 63) << 12 | (uint32_t)(b[2] & 63) << 6 | (b[3] & 63);
}

/* Decodes the character at text[*pos] and advances *pos past it. Returns 0 at the end of the text, U+FFFD for a character that the end
 * cuts. */
static inline uint32_t utf8_next(Str text, size_t *pos)
{
    size_t   size = *pos < text.len ? utf8_size((uint8_t)text.data[*pos]) : 0;
    bool     fits = size && size <= text.len - *pos;
    uint32_t cp = fits ? utf8_decode(text.data + *pos, &size) : size ? 0xFFFD : 0;
    *pos = fits ? *pos + size : text.len;
    return cp;
}

/* Start of the character that ends at `end`, in valid UTF-8; end > 0. */
static inline size_t utf8_back(const char *text, size_t end)
{
    end--;
    while (end > 0 && ((uint8_t)text[end] & 0xC0) == 0x80) end--;
    return end;
}

size_t utf8_count(Str text);                /* number of characters */
size_t utf8_offset(Str text, size_t count); /* byte offset of character number `count`, at most text.len */

/* Writes 1 to 4 bytes and returns their number; `code` must be a scalar value. */
size_t utf8_encode(uint32_t code, char *out);

/* Length of the longest prefix of text[0..len) that is valid UTF-8 (no surrogates, no overlong forms). */
size_t utf8_valid_prefix(const char *text, size_t len);

/* Length in bytes of the ill-formed sequence at text[0], len > 0: the longest beginning of a character, at least 1. Decoders replace it by
 * one U+FFFD. *out_cut_short: the text ends in the middle of a character. */
size_t utf8_bad_size(const char *text, size_t len, bool *out_cut_short);

/* Appends text with every ill-formed sequence replaced by U+FFFD. */
void utf8_append_repaired(StrBuf *out, const char *text, size_t len);

/* byte_to_char: GPT-2's printable stand-in for a byte, a code point below 324. char_to_byte: the inverse; -1: the character stands for no
 * byte. */
uint32_t byte_to_char(uint8_t byte);
int      char_to_byte(uint32_t code);
