/* JsonWalk: the text of a JSON object (RFC 8259) byte by byte, without memory: after each byte it is known whether the bytes so far begin
 * such a text. Strings are valid UTF-8, and an escaped surrogate has its partner. Keys may be there twice. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { JSON_WALK_DEPTH = 64, JSON_WALK_FREE = 255 };

/* JSON_WALK_FREE blanks or digits: no limit. */
typedef struct JsonLimits {
    uint8_t depth;    /* objects and arrays in each other: 1 to JSON_WALK_DEPTH */
    uint8_t blanks;   /* one after the other */
    uint8_t digits;   /* of a number, before its exponent: at least 1 */
    uint8_t exponent; /* digits of it: at least 1 */
} JsonLimits;

/* None but JSON_WALK_DEPTH. */
extern const JsonLimits json_walk_free;

/* Zero-initialised is before the first byte. All of the fields say what may follow. */
typedef struct JsonWalk {
    uint64_t objects; /* bit i: the i-th container from the innermost is an object; else an array */
    uint8_t  depth;
    uint8_t  phase;
    uint8_t  used;      /* blanks in a row, or digits of the number */
    uint8_t  low, high; /* the next byte of a character of several */
    uint8_t  left;      /* bytes of it behind that one */
    uint8_t  word, at;  /* a literal, and how much of it was there */
    bool     is_key;    /* the string is a key */
} JsonWalk;

/* false: no text of an object begins so; the walk is then of no use. */
bool json_walk(JsonWalk *walk, const JsonLimits *limits, unsigned char byte);

/* The object has been closed: nothing may follow. */
bool json_walk_is_whole(const JsonWalk *walk);
