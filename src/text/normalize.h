/* Normalizers rewrite a text before it is cut into words. */
#pragma once

#include "base/json.h"
#include "text/pretokenize_regex.h"
#include "text/tokenizer_unicode.h"

typedef struct Normalizer Normalizer; /* a list of steps; immutable after parsing */

/* Parses the value of "normalizer" (NULL or null: no steps). Memory is from the arena, except for regular expressions: free those with
 * normalizer_deinit. Error messages name the component. */
NODISCARD Status normalizer_parse(Arena *arena, const JsonValue *json, Normalizer **out);
void             normalizer_deinit(Normalizer *normalizer);

/* Normalizes valid UTF-8. *out_text is `text` itself (or a part of it) if nothing was rewritten, else it points into buffers[0] or
 * buffers[1]. `text` must not be in these buffers. */
NODISCARD Status normalize(const Normalizer *normalizer, const CharTable *table, RegexScratch *regex, StrBuf buffers[2], Str text,
                           Str *out_text);

/* Parsing shared by the steps of normalizers and decoders. `what`: "normalizer" or "decoder", for messages. Reads the text member `key`,
 * copied into the arena. */
NODISCARD Status step_parse_text(Arena *arena, const JsonValue *json, const char *what, const char *type, const char *key, Str *out);
/* Parses a Replace step. If its pattern is a regular expression, *regex is set, owned by the caller; else *pattern is set and *regex stays
 * NULL. */
NODISCARD Status step_parse_replace(Arena *arena, const JsonValue *json, const char *what, Str *pattern, Str *content, Regex **regex);
