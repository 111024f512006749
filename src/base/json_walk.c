/* See json_walk.h. A phase says which bytes may follow; the stack of open containers is a bit mask. */
#include "base/json_walk.h"

#include "base/str.h"

const JsonLimits json_walk_free = {JSON_WALK_DEPTH, JSON_WALK_FREE, JSON_WALK_FREE, JSON_WALK_FREE};

typedef enum Phase {
    AT_OBJECT, /* before the outermost object */
    AT_VALUE,
    AT_VALUE_OR_END, /* after [ */
    AT_KEY_OR_END,   /* after { */
    AT_KEY,
    AT_COLON,
    BEHIND_VALUE,
    IN_STRING,
    IN_CHARACTER,
    IN_ESCAPE,
    IN_HEX_1, /* hexadecimal digits of \uXXXX: the first one is next */
    IN_HEX_2,
    IN_HEX_2_OF_D, /* after \ud */
    IN_HEX_3,
    IN_HEX_4,
    IN_HIGH_3, /* third digit of a high surrogate */
    IN_HIGH_4,
    IN_PAIR_SLASH, /* after a high surrogate */
    IN_PAIR_U,
    IN_LOW_1, /* first digit of a low surrogate */
    IN_LOW_2,
    BEHIND_MINUS,
    BEHIND_ZERO,
    IN_DIGITS,
    BEHIND_POINT,
    IN_FRACTION,
    BEHIND_E,
    BEHIND_SIGN,
    IN_EXPONENT,
    IN_WORD,
    IS_WHOLE,
} Phase;

static const char *const words[] = {"true", "false", "null"};

static bool go(JsonWalk *walk, Phase phase)
{
    walk->phase = (uint8_t)phase;
    return true;
}

/* Counts one more blank or digit; false: the limit is exceeded. */
static bool use(JsonWalk *walk, uint8_t limit)
{
    if (limit == JSON_WALK_FREE) return true;
    if (walk->used >= limit) return false;
    walk->used++;
    return true;
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(unsigned char c)
{
    return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

static bool open_container(JsonWalk *walk, const JsonLimits *limits, bool is_object)
{
    if (walk->depth >= limits->depth) return false;
    walk->depth++;
    walk->objects = walk->objects << 1 | is_object;
    return go(walk, is_object ? AT_KEY_OR_END : AT_VALUE_OR_END);
}

static bool close_container(JsonWalk *walk, bool is_object)
{
    if ((walk->objects & 1) != is_object) return false;
    walk->objects >>= 1;
    walk->depth--;
    return go(walk, walk->depth ? BEHIND_VALUE : IS_WHOLE);
}

static bool begin_string(JsonWalk *walk, bool is_key)
{
    walk->is_key = is_key;
    return go(walk, IN_STRING);
}

static bool end_string(JsonWalk *walk)
{
    bool is_key = walk->is_key;
    walk->is_key = false;
    return go(walk, is_key ? AT_COLON : BEHIND_VALUE);
}

static bool begin_word(JsonWalk *walk, uint8_t word)
{
    walk->word = word;
    walk->at = 1;
    return go(walk, IN_WORD);
}

static bool in_word(JsonWalk *walk, unsigned char c)
{
    const char *word = words[walk->word];
    if ((char)c != word[walk->at]) return false;
    if (word[++walk->at]) return true;
    walk->word = walk->at = 0;
    return go(walk, BEHIND_VALUE);
}

static bool at_value(JsonWalk *walk, const JsonLimits *limits, unsigned char c)
{
    if (is_digit(c)) {
        if (!use(walk, limits->digits)) return false;
        return go(walk, c == '0' ? BEHIND_ZERO : IN_DIGITS);
    }
    switch (c) {
    case '{':
        return open_container(walk, limits, true);
    case '[':
        return open_container(walk, limits, false);
    case '"':
        return begin_string(walk, false);
    case '-':
        return go(walk, BEHIND_MINUS);
    case 't':
        return begin_word(walk, 0);
    case 'f':
        return begin_word(walk, 1);
    case 'n':
        return begin_word(walk, 2);
    }
    return false;
}

static bool behind_value(JsonWalk *walk, unsigned char c)
{
    bool in_object = walk->objects & 1;
    if (c == ',') return go(walk, in_object ? AT_KEY : AT_VALUE);
    if (c == '}' || c == ']') return close_container(walk, c == '}');
    return false;
}

/* Handles phases in which blanks are allowed. */
static bool between(JsonWalk *walk, const JsonLimits *limits, unsigned char c)
{
    if (byte_is_blank((char)c)) return use(walk, limits->blanks);
    walk->used = 0;
    switch ((Phase)walk->phase) {
    case AT_OBJECT:
        return c == '{' && open_container(walk, limits, true);
    case AT_VALUE_OR_END:
        if (c == ']') return close_container(walk, false);
        return at_value(walk, limits, c);
    case AT_KEY_OR_END:
        if (c == '}') return close_container(walk, true);
        return c == '"' && begin_string(walk, true);
    case AT_KEY:
        return c == '"' && begin_string(walk, true);
    case AT_COLON:
        return c == ':' && go(walk, AT_VALUE);
    case BEHIND_VALUE:
        return behind_value(walk, c);
    default:
        return at_value(walk, limits, c);
    }
}

/* Handles the first byte of a multi-byte character (RFC 3629: no overlong forms, no surrogates). */
static bool begin_character(JsonWalk *walk, unsigned char c)
{
    if (c < 0xC2 || c > 0xF4) return false;
    walk->left = c < 0xE0 ? 0 : c < 0xF0 ? 1 : 2;
    walk->low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    walk->high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return go(walk, IN_CHARACTER);
}

static bool in_character(JsonWalk *walk, unsigned char c)
{
    if (c < walk->low || c > walk->high) return false;
    if (walk->left) {
        walk->left--;
        walk->low = 0x80;
        walk->high = 0xBF;
        return true;
    }
    walk->low = walk->high = 0;
    return go(walk, IN_STRING);
}

static bool in_string(JsonWalk *walk, unsigned char c)
{
    if (c == '"') return end_string(walk);
    if (c == '\\') return go(walk, IN_ESCAPE);
    if (c >= 0x80) return begin_character(walk, c);
    return c >= 0x20;
}

static bool in_escape(JsonWalk *walk, unsigned char c)
{
    switch (c) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        return go(walk, IN_STRING);
    case 'u':
        return go(walk, IN_HEX_1);
    }
    return false;
}

/* Handles hexadecimal digits of \uXXXX. d8 to db begin a high surrogate; dc to df begin a low one, which must follow a high one. */
static bool in_hex(JsonWalk *walk, unsigned char c)
{
    unsigned char letter = c | 32;
    switch ((Phase)walk->phase) {
    case IN_PAIR_SLASH:
        return c == '\\' && go(walk, IN_PAIR_U);
    case IN_PAIR_U:
        return c == 'u' && go(walk, IN_LOW_1);
    case IN_LOW_1:
        return letter == 'd' && go(walk, IN_LOW_2);
    case IN_LOW_2:
        return letter >= 'c' && letter <= 'f' && go(walk, IN_HEX_3);
    default:
        break;
    }
    if (!is_hex(c)) return false;
    switch ((Phase)walk->phase) {
    case IN_HEX_1:
        return go(walk, letter == 'd' ? IN_HEX_2_OF_D : IN_HEX_2);
    case IN_HEX_2:
        return go(walk, IN_HEX_3);
    case IN_HEX_2_OF_D:
        if (c >= '0' && c <= '7') return go(walk, IN_HEX_3);
        return letter < 'c' && go(walk, IN_HIGH_3); /* 8, 9, a, b */
    case IN_HEX_3:
        return go(walk, IN_HEX_4);
    case IN_HIGH_3:
        return go(walk, IN_HIGH_4);
    case IN_HIGH_4:
        return go(walk, IN_PAIR_SLASH);
    default:
        return go(walk, IN_STRING);
    }
}

/* The number ended before `c`, which is handled as the byte after a value. */
static bool end_number(JsonWalk *walk, const JsonLimits *limits, unsigned char c)
{
    walk->used = 0;
    go(walk, BEHIND_VALUE);
    return between(walk, limits, c);
}

static bool begin_exponent(JsonWalk *walk)
{
    walk->used = 0;
    return go(walk, BEHIND_E);
}

static bool in_number(JsonWalk *walk, const JsonLimits *limits, unsigned char c)
{
    bool has_room = limits->digits == JSON_WALK_FREE || walk->used < limits->digits;
    switch ((Phase)walk->phase) {
    case BEHIND_MINUS:
        return is_digit(c) && at_value(walk, limits, c);
    case BEHIND_ZERO:
    case IN_DIGITS:
        if (is_digit(c)) return walk->phase == IN_DIGITS && use(walk, limits->digits);
        if (c == '.') return has_room && go(walk, BEHIND_POINT);
        if (c == 'e' || c == 'E') return begin_exponent(walk);
        return end_number(walk, limits, c);
    case BEHIND_POINT:
        return is_digit(c) && use(walk, limits->digits) && go(walk, IN_FRACTION);
    case IN_FRACTION:
        if (is_digit(c)) return use(walk, limits->digits);
        if (c == 'e' || c == 'E') return begin_exponent(walk);
        return end_number(walk, limits, c);
    case BEHIND_E:
        if (c == '+' || c == '-') return go(walk, BEHIND_SIGN);
        return is_digit(c) && use(walk, limits->exponent) && go(walk, IN_EXPONENT);
    case BEHIND_SIGN:
        return is_digit(c) && use(walk, limits->exponent) && go(walk, IN_EXPONENT);
    default:
        if (is_digit(c)) return use(walk, limits->exponent);
        return end_number(walk, limits, c);
    }
}

bool json_walk(JsonWalk *walk, const JsonLimits *limits, unsigned char byte)
{
    switch ((Phase)walk->phase) {
    case IN_STRING:
        return in_string(walk, byte);
    case IN_CHARACTER:
        return in_character(walk, byte);
    case IN_ESCAPE:
        return in_escape(walk, byte);
    case IN_WORD:
        return in_word(walk, byte);
    case IS_WHOLE:
        return false;
    default:
        if (walk->phase < IN_STRING) return between(walk, limits, byte);
        if (walk->phase < BEHIND_MINUS) return in_hex(walk, byte);
        return in_number(walk, limits, byte);
    }
}

bool json_walk_is_whole(const JsonWalk *walk)
{
    return walk->phase == IS_WHOLE;
}
