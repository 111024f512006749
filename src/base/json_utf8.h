/* UTF-8 as the JSON reader and writer check it. Private to json_*.c and to code that shows messages. */
#pragma once

#include <stddef.h>

/* Length in bytes of the UTF-8 character at text[0..len), or 0 if it isn't valid (RFC 3629: no overlong forms, no surrogates). */
static inline size_t json_utf8_len(const unsigned char *text, size_t len)
{
    unsigned c = text[0];
    if (c < 0x80) return 1;
    size_t need = c >= 0xC2 && c <= 0xDF ? 2 : c >= 0xE0 && c <= 0xEF ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : 0;
    if (need == 0 || need > len) return 0;
    unsigned least = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, most = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    if (text[1] < least || text[1] > most) return 0;
    for (size_t i = 2; i < need; i++)
        if (text[i] < 0x80 || text[i] > 0xBF) return 0;
    return need;
}
