/* UTF-8, GPT-2's stand-in characters for bytes, and the table of character classes. tools/make-char-table.c writes the table at build time.
 * A look-up in a table that fits the cache is several times faster than asking utf8proc; making the table at run time would cost more than
 * loading a small tokenizer. */
#include "text/tokenizer_unicode.h"

#include <string.h>

#include "char_table.inc" /* defines char_blocks and char_classes */

const CharTable char_table = {char_blocks, char_classes};

size_t utf8_count(Str text)
{
    size_t count = 0;
    for (size_t i = 0; i < text.len; i++) count += ((unsigned char)text.data[i] & 0xC0) != 0x80;
    return count;
}

size_t utf8_offset(Str text, size_t count)
{
    size_t i = 0;
    for (; i < text.len; i++)
        if (((unsigned char)text.data[i] & 0xC0) != 0x80 && count-- == 0) break;
    return i;
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

/* Returns the length in bytes of the well-formed character at text[0]. If there is none, returns 0; *out_bad: length of the ill-formed
 * part; *out_cut_short: the character is only incomplete because the text ends. See Unicode table 3-7. */
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

/* Whether a byte is printable in Latin-1: then it stands for itself. The other 68 bytes map to 256, 257, ... in order. */
static bool byte_prints(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t byte_to_char(uint8_t byte)
{
    if (byte_prints(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    if (byte <= 160) return 256u + 33 + (byte - 127u);
    return 323; /* byte 173, the soft hyphen */
}

int char_to_byte(uint32_t code)
{
    if (code < 256) return byte_prints((int)code) ? (int)code : -1;
    if (code <= 256 + 32) return (int)code - 256;
    if (code <= 322) return (int)code - 256 - 33 + 127;
    return code == 323 ? 173 : -1;
}
