/* Regular expressions of tokenizer files. They are written for Oniguruma (Ruby syntax) and run by PCRE2 with its JIT. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef struct Regex        Regex;
typedef struct RegexScratch RegexScratch; /* match state of one thread; can be used with all expressions */

/* Compiles an expression. Items that mean something else in PCRE2 are rewritten: \s, \w, \d, \h, \b, POSIX classes, scripts, Unicode 16's
 * general categories, ^ and $ at every line, "{n,m}+", sets in sets. ERR_UNSUPPORTED for items that can't be: set operations, negated sets
 * in sets, properties that PCRE2 doesn't know. */
NODISCARD Status regex_compile(const char *pattern, size_t len, Regex **out_regex);
void             regex_destroy(Regex *regex);

RegexScratch *regex_scratch_create(void);
void          regex_scratch_destroy(RegexScratch *scratch);

/* Finds the first match that begins at or after `from`, in valid UTF-8: text[*out_start, *out_end). *out_found: whether there is one.
 * ERR_INVALID if the search needs too many steps. */
NODISCARD Status regex_find(const Regex *regex, RegexScratch *scratch, Str text, size_t from, bool *out_found, size_t *out_start,
                            size_t *out_end);

/* Appends `text` to *out, with every match replaced by `content` (taken literally). */
NODISCARD Status regex_replace(const Regex *regex, RegexScratch *scratch, Str text, Str content, StrBuf *out);
