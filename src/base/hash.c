#include "base/hash.h"

/* compiles xxHash into this file, so that no library is needed */
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash_bytes(const void *data, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size, seed);
}

bool hash_parse(const char *text, uint64_t *out)
{
    uint64_t hash = 0;
    for (int i = 0; i < 16; i++) {
        char c = text[i];
        int  digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return false;
        hash = hash << 4 | (uint64_t)digit;
    }
    *out = hash;
    return text[16] == 0;
}
