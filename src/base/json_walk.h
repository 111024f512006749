/* JsonWalk: checks the text of a JSON object (RFC 8259) byte by byte, without allocating. After each byte it is known whether the bytes so
 * far are a prefix of such a text. Strings must be valid UTF-8, and escaped surrogates must be paired. Duplicate keys are allowed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { JSON_WALK_DEPTH = 64, JSON_WALK_FREE = 255 };

/* Limits of the accepted texts. `blanks`, `digits` and `exponent` may be JSON_WALK_FREE: no limit. */
typedef struct JsonLimits {
    uint8_t depth;    /* nested objects and arrays: 1 to JSON_WALK_DEPTH */
    uint8_t blanks;   /* consecutive blanks */
    uint8_t digits;   /* digits of a number before its exponent: at least 1 */
    uint8_t exponent; /* digits of an exponent: at least 1 */
} JsonLimits;

/* No limits, except a depth of JSON_WALK_DEPTH. */
extern const JsonLimits json_walk_free;

/* The state; zero-initialised: before the first byte. The fields together determine which bytes may follow. */
typedef struct JsonWalk {
    uint64_t objects; /* bit i: whether the i-th open container, from the innermost, is an object (else an array) */
    uint8_t  depth;
    uint8_t  phase;
    uint8_t  used;      /* consecutive blanks, or digits of the number, so far */
    uint8_t  low, high; /* within a multi-byte character: the range that its next byte must be in */
    uint8_t  left;      /* bytes of the character after its next byte */
    uint8_t  word, at;  /* index of a literal (true, false, null), and how many of its bytes were read */
    bool     is_key;    /* the current string is a key */
} JsonWalk;

/* Consumes one byte. False: no object begins with these bytes; the walk must not be used any more. */
bool json_walk(JsonWalk *walk, const JsonLimits *limits, unsigned char byte);

/* Whether the outermost object is closed: nothing may follow. */
bool json_walk_is_whole(const JsonWalk *walk);
