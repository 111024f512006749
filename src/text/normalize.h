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
