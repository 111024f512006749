/* Regular expressions of tokenizer files: written for Oniguruma (Ruby syntax), run by PCRE2 with its JIT. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef struct Regex        Regex;
typedef struct RegexScratch RegexScratch; /* match state of one thread; serves all expressions */

/* Where the two engines' meanings differ the expression is rewritten (\s, \w, \d, \h, \b, POSIX classes, scripts,
 * Unicode 16's general categories, ^ and $ at every line, "{n,m}+", sets in sets). ERR_UNSUPPORTED for what can't be: set
 * operations, negated sets in sets, properties that PCRE2 doesn't know. */
NODISCARD Status regex_compile(const char *pattern, size_t len, Regex **out_regex);
void             regex_destroy(Regex *regex);

RegexScratch *regex_scratch_create(void);
void          regex_scratch_destroy(RegexScratch *scratch);

/* The first match at or after `from` in valid UTF-8: *out_start, *out_end. *out_found is false when there is none.
 * ERR_INVALID when the expression needs too many steps. */
NODISCARD Status regex_find(const Regex *regex, RegexScratch *scratch, Str text, size_t from, bool *out_found, size_t *out_start,
                            size_t *out_end);

/* Appends text with every match replaced by `content` as it stands. */
NODISCARD Status regex_replace(const Regex *regex, RegexScratch *scratch, Str text, Str content, StrBuf *out);
