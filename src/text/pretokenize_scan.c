/* Hand-written scanners for the expressions of GPT-2, Qwen and Llama-3. Each alternative of an expression is a step in the code, in the
 * same order. Tests check that the scanners and PCRE2 give the same words. */
#include "text/pretokenize.h"

#include <limits.h>
#include <string.h>

#define SUFFIXES "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define LETTERS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

Scanner scanner_of_pattern(const char *pattern, size_t len)
{
    static const struct {
        const char *pattern;
        Scanner     scanner;
    } known[] = {
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", {SCAN_GPT2, 0, false}},
        {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", {SCAN_GPT2, 0, false}},
        {SUFFIXES LETTERS "\\p{N}|" REST, {SCAN_CL100K, 1, false}},
        {SUFFIXES LETTERS "\\p{N}{1,3}|" REST, {SCAN_CL100K, 3, false}},
        {SUFFIXES LETTERS "\\p{N}+|" REST, {SCAN_CL100K, INT_MAX, false}},
        {SUFFIXES "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
                  "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         {SCAN_CL100K, 1, true}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (len == strlen(known[i].pattern) && memcmp(pattern, known[i].pattern, len) == 0) return known[i].scanner;
    return (Scanner){0};
}

typedef struct Cursor {
    const CharTable *table;
    const char      *text;
    size_t           len;
} Cursor;

/* Classes of the character at `at` < len; *out_size: its length in bytes. */
static inline uint8_t class_at(const Cursor *c, size_t at, size_t *out_size)
{
    uint8_t byte = (uint8_t)c->text[at];
    if (byte < 0x80) {
        *out_size = 1;
        return c->table->flags[byte]; /* code points below 256 are the first block */
    }
    return char_flags(c->table, utf8_decode(c->text + at, out_size));
}

/* End of the run of characters from `at` on that have a class in `any` or, if any is 0, that have no class in `none`. */
static inline size_t run_end(const Cursor *c, size_t at, uint8_t any, uint8_t none)
{
    size_t size;
    while (at < c->len) {
        uint8_t flags = class_at(c, at, &size);
        if (any ? !(flags & any) : (flags & none)) break;
        at += size;
    }
    return at;
}

/* Length of a contraction ('s 't 're 've 'm 'll 'd) with its apostrophe at `at`; 0: none. any_case: upper case too, and U+017F, which is
 * equal to s if case is ignored. */
static size_t suffix_size(const Cursor *c, size_t at, bool any_case)
{
    size_t left = c->len - at;
    if (left < 2) return 0;
    uint8_t a = (uint8_t)c->text[at + 1], b = left > 2 ? (uint8_t)c->text[at + 2] : 0;
    if (any_case) {
        if (a == 0xC5 && b == 0xBF) return 3;
        if (a < 0x80) a |= 32; /* only upper-case letters can become one of the letters below */
        if (b < 0x80) b |= 32;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (left > 2 && ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))) return 3;
    return 0;
}

/* End of a match of \s+(?!\S)|\s+ on the white space [at, end). If text follows, the last character is left out, unless it is the only
 * one. */
static size_t space_end(const Cursor *c, size_t at, size_t end)
{
    if (end == c->len) return end;
    size_t last = utf8_back(c->text, end);
    return last > at ? last : end;
}

static size_t gpt2_next(const Cursor *c, size_t at)
{
    size_t  size, start = at;
    uint8_t flags = class_at(c, at, &size);
    if (c->text[at] == '\'') {
        size_t suffix = suffix_size(c, at, false);
        if (suffix) return at + suffix;
    } else if (c->text[at] == ' ' && at + 1 < c->len) {
        uint8_t next = class_at(c, at + 1, &size);
        if (!(next & CHAR_SPACE)) {
            flags = next;
            start = at + 1;
        }
    }
    if (flags & CHAR_LETTER) return run_end(c, start + size, CHAR_LETTER, 0);
    if (flags & CHAR_NUMBER) return run_end(c, start + size, CHAR_NUMBER, 0);
    if (!(flags & CHAR_SPACE)) return run_end(c, start + size, 0, CHAR_LETTER | CHAR_NUMBER | CHAR_SPACE);
    return space_end(c, at, run_end(c, at, CHAR_SPACE, 0));
}

/* \s*[\r\n]+: the word ends after the last line break of the white space. White space without a line break: as in GPT-2 (space_end). */
static size_t cl100k_space(const Cursor *c, size_t at)
{
    size_t end = run_end(c, at, CHAR_SPACE, 0), newline = end;
    while (newline > at && c->text[newline - 1] != '\n' && c->text[newline - 1] != '\r') newline--;
    return newline > at ? newline : space_end(c, at, end);
}

static size_t cl100k_next(const Cursor *c, size_t at, const Scanner *scanner)
{
    size_t  size, next_size = 0;
    uint8_t letter = scanner->marks ? CHAR_LETTER | CHAR_MARK : CHAR_LETTER;
    uint8_t flags = class_at(c, at, &size), next = 0;
    if (c->text[at] == '\'') {
        size_t suffix = suffix_size(c, at, true);
        if (suffix) return at + suffix;
    }
    if (flags & CHAR_LETTER) return run_end(c, at + size, letter, 0);
    if (flags & CHAR_NUMBER) {
        size_t end = at + size;
        for (int n = 1; n < scanner->max_digits && end < c->len; n++) {
            if (!(class_at(c, end, &size) & CHAR_NUMBER)) break;
            end += size;
        }
        return end;
    }
    if (at + size < c->len) next = class_at(c, at + size, &next_size);
    if (!(flags & CHAR_NEWLINE) && (next & letter)) return run_end(c, at + size + next_size, letter, 0);
    if (flags & letter) return run_end(c, at + size, letter, 0);
    uint8_t word = letter | CHAR_NUMBER | CHAR_SPACE;
    size_t  start = at;
    if (c->text[at] == ' ' && at + 1 < c->len && !(next & word)) start++;
    if (start == at && (flags & CHAR_SPACE)) return cl100k_space(c, at);
    return run_end(c, run_end(c, start, 0, word), CHAR_NEWLINE, 0);
}

size_t scanner_next(const Scanner *scanner, const CharTable *table, const char *text, size_t at, size_t len)
{
    Cursor cursor = {table, text, len};
    return scanner->kind == SCAN_GPT2 ? gpt2_next(&cursor, at) : cl100k_next(&cursor, at, scanner);
}
