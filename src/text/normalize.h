/* Normalizers: rewrite a text before it is cut into words. */
#pragma once

#include "base/json.h"
#include "text/pretokenize_regex.h"
#include "text/tokenizer_unicode.h"

typedef struct Normalizer Normalizer; /* a list of steps; immutable */

/* Reads the value of "normalizer" (NULL or null: none); memory from the arena, expressions until normalizer_deinit.
 * Errors name the component. */
NODISCARD Status normalizer_parse(Arena *arena, const JsonValue *json, Normalizer **out);
void             normalizer_deinit(Normalizer *normalizer);

/* The normal form of valid UTF-8: *out_text is `text` itself where nothing changes, else it lies in buffers[0] or [1],
 * where `text` must not lie. */
NODISCARD Status normalize(const Normalizer *normalizer, const CharTable *table, RegexScratch *regex, StrBuf buffers[2], Str text,
                           Str *out_text);

/* What steps of normalizers and decoders have in common; `what` is which of the two, for messages. A member that is a text, copied into
 * the arena. */
NODISCARD Status step_parse_text(Arena *arena, const JsonValue *json, const char *what, const char *type, const char *key, Str *out);
/* Replace: a pattern, or an expression in its place, which the caller owns (*regex stays NULL for a pattern). */
NODISCARD Status step_parse_replace(Arena *arena, const JsonValue *json, const char *what, Str *pattern, Str *content, Regex **regex);
