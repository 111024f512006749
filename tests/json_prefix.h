/* The slow reference of json_walk: whether a text is the beginning of some JSON object. It parses from the start by recursive descent,
 * independently of json_walk. */
#pragma once

#include "base/json_walk.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum PrefixIs { PREFIX_BAD, PREFIX_OPEN, PREFIX_WHOLE } PrefixIs;

typedef struct PrefixText {
    const unsigned char *at, *end;
    const JsonLimits    *limits;
} PrefixText;

__attribute__((unused)) static PrefixIs prefix_value(PrefixText *t, int depth);

/* Skips blanks. WHOLE: another character is next. */
static PrefixIs prefix_blanks(PrefixText *t)
{
    int count = 0;
    for (; t->at < t->end && strchr(" \t\r\n", *t->at) && *t->at; t->at++) count++;
    if (t->limits->blanks != JSON_WALK_FREE && count > t->limits->blanks) return PREFIX_BAD;
    return t->at < t->end ? PREFIX_WHOLE : PREFIX_OPEN;
}

/* A character of several bytes: the bytes so far must allow a code point from `low` to `high`. */
static PrefixIs prefix_character(PrefixText *t)
{
    unsigned first = *t->at, count = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2, there = (unsigned)(t->end - t->at);
    unsigned least[] = {0, 0, 0x80, 0x800, 0x10000}, low, high;
    if (first < 0xC0 || first >= 0xF8) return PREFIX_BAD;
    low = high = first & (0xFF >> (count + 1));
    for (unsigned i = 1; i < count; i++) {
        if (i < there && (t->at[i] & 0xC0) != 0x80) return PREFIX_BAD;
        low = low << 6 | (i < there ? t->at[i] & 0x3F : 0);
        high = high << 6 | (i < there ? t->at[i] & 0x3F : 0x3F);
    }
    if (low < least[count]) low = least[count];
    if (high > 0x10FFFF) high = 0x10FFFF;
    if (low > high || (low >= 0xD800 && high <= 0xDFFF)) return PREFIX_BAD;
    if (there < count) {
        t->at = t->end;
        return PREFIX_OPEN;
    }
    t->at += count;
    return PREFIX_WHOLE;
}

/* Four hex digits: whether they can be a number in least..most outside of not_least..not_most. */
static PrefixIs prefix_hex(PrefixText *t, unsigned least, unsigned most, unsigned not_least, unsigned not_most, unsigned *out)
{
    unsigned low = 0, high = 0;
    int      n = 0;
    for (; n < 4; n++) {
        const char *digits = "0123456789abcdef", *found = NULL;
        if (t->at + n < t->end) {
            found = t->at[n] ? strchr(digits, t->at[n] >= 'A' && t->at[n] <= 'F' ? t->at[n] + 32 : t->at[n]) : NULL;
            if (!found) return PREFIX_BAD;
        }
        low = low * 16 + (found ? (unsigned)(found - digits) : 0);
        high = high * 16 + (found ? (unsigned)(found - digits) : 15);
    }
    bool some = false;
    for (unsigned unit = low; unit <= high; unit++) some |= unit >= least && unit <= most && !(unit >= not_least && unit <= not_most);
    if (!some) return PREFIX_BAD;
    if (t->end - t->at < 4) {
        t->at = t->end;
        return PREFIX_OPEN;
    }
    t->at += 4;
    *out = low;
    return PREFIX_WHOLE;
}

static PrefixIs prefix_literal(PrefixText *t, const char *word)
{
    for (; *word; word++, t->at++) {
        if (t->at == t->end) return PREFIX_OPEN;
        if (*t->at != (unsigned char)*word) return PREFIX_BAD;
    }
    return PREFIX_WHOLE;
}

static PrefixIs prefix_escape(PrefixText *t)
{
    unsigned unit = 0;
    if (++t->at == t->end) return PREFIX_OPEN;
    if (*t->at != 'u') return *t->at && strchr("\"\\/bfnrt", *t->at++) ? PREFIX_WHOLE : PREFIX_BAD;
    t->at++;
    PrefixIs is = prefix_hex(t, 0, 0xFFFF, 0xDC00, 0xDFFF, &unit);
    if (is != PREFIX_WHOLE || unit < 0xD800 || unit > 0xDBFF) return is;
    is = prefix_literal(t, "\\u");
    return is == PREFIX_WHOLE ? prefix_hex(t, 0xDC00, 0xDFFF, 1, 0, &unit) : is;
}

static PrefixIs prefix_string(PrefixText *t)
{
    for (t->at++; t->at < t->end;) {
        PrefixIs is = PREFIX_WHOLE;
        if (*t->at == '"') {
            t->at++;
            return PREFIX_WHOLE;
        }
        if (*t->at < 0x20) return PREFIX_BAD;
        if (*t->at == '\\')
            is = prefix_escape(t);
        else if (*t->at >= 0x80)
            is = prefix_character(t);
        else
            t->at++;
        if (is != PREFIX_WHOLE) return is;
    }
    return PREFIX_OPEN;
}

/* Whether a text is a number with few enough digits. */
static bool prefix_is_number(const char *text, const JsonLimits *limits)
{
    size_t      whole, digits;
    const char *exponent;
    text += *text == '-';
    digits = whole = strspn(text, "0123456789");
    if (!whole || (whole > 1 && *text == '0')) return false;
    text += whole;
    if (*text == '.') {
        size_t part = strspn(text + 1, "0123456789");
        if (!part) return false;
        digits += part;
        text += 1 + part;
    }
    if (limits->digits != JSON_WALK_FREE && digits > limits->digits) return false;
    if (!*text) return true;
    if (*text != 'e' && *text != 'E') return false;
    exponent = text + 1 + (text[1] == '+' || text[1] == '-');
    digits = strspn(exponent, "0123456789");
    return digits && !exponent[digits] && (limits->exponent == JSON_WALK_FREE || digits <= limits->exponent);
}

static PrefixIs prefix_number(PrefixText *t)
{
    size_t len = 0;
    char  *text;
    while (t->at + len < t->end && t->at[len] && strchr("+-.eE0123456789", t->at[len])) len++;
    text = calloc(len + 2, 1);
    memcpy(text, t->at, len);
    t->at += len;
    bool is_one = prefix_is_number(text, t->limits), becomes_one;
    text[len] = '0';
    becomes_one = prefix_is_number(text, t->limits);
    free(text);
    if (t->at < t->end) return is_one ? PREFIX_WHOLE : PREFIX_BAD;
    return is_one || becomes_one ? PREFIX_OPEN : PREFIX_BAD;
}

static PrefixIs prefix_container(PrefixText *t, int depth, bool is_object)
{
    PrefixIs is;
    if (depth > t->limits->depth) return PREFIX_BAD;
    t->at++;
    for (bool first = true;; first = false) {
        if ((is = prefix_blanks(t)) != PREFIX_WHOLE) return is;
        if (*t->at == (is_object ? '}' : ']') && first) break;
        if (is_object) {
            if (*t->at != '"') return PREFIX_BAD;
            if ((is = prefix_string(t)) != PREFIX_WHOLE || (is = prefix_blanks(t)) != PREFIX_WHOLE) return is;
            if (*t->at++ != ':') return PREFIX_BAD;
        }
        if ((is = prefix_value(t, depth)) != PREFIX_WHOLE || (is = prefix_blanks(t)) != PREFIX_WHOLE) return is;
        if (*t->at != ',') break;
        t->at++;
    }
    return *t->at++ == (is_object ? '}' : ']') ? PREFIX_WHOLE : PREFIX_BAD;
}

static PrefixIs prefix_value(PrefixText *t, int depth)
{
    PrefixIs is = prefix_blanks(t);
    if (is != PREFIX_WHOLE) return is;
    switch (*t->at) {
    case '{':
    case '[':
        return prefix_container(t, depth + 1, *t->at == '{');
    case '"':
        return prefix_string(t);
    case 't':
        return prefix_literal(t, "true");
    case 'f':
        return prefix_literal(t, "false");
    case 'n':
        return prefix_literal(t, "null");
    }
    return prefix_number(t);
}

/* Whether the text is an object, or the beginning of one; nothing may follow the object. */
__attribute__((unused)) static PrefixIs prefix_of_object(const char *text, size_t len, const JsonLimits *limits)
{
    PrefixText t = {(const unsigned char *)text, (const unsigned char *)text + len, limits};
    PrefixIs   is = prefix_blanks(&t);
    if (is != PREFIX_WHOLE) return is;
    if (*t.at != '{') return PREFIX_BAD;
    is = prefix_container(&t, 1, true);
    return is == PREFIX_WHOLE && t.at < t.end ? PREFIX_BAD : is;
}
