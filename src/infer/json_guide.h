/* JsonGuide: which tokens may come next so that a text becomes one JSON object (RFC 8259), perhaps behind a given text, and ends with it.
 * Strings stay valid UTF-8, escaped surrogates come in pairs; nesting, blanks in a row and digits are bounded, so that a model can't go on
 * with them for ever. A key may be there twice. */
#pragma once

#include "base/json_walk.h"
#include "text/tokenizer.h"

/* 32 levels; 24 blanks in a row, which hold a line's end and an indent; numbers of 32 digits and exponents of 2, which a double can hold.
 */
extern const JsonLimits json_guide_limits;

/* What tokens are as bytes, in an order that lets them be walked together; shared by guides of one thread. Masks are kept by state. */
typedef struct JsonTokens JsonTokens;

/* Ids from 0 to `choices` - 1 may be chosen. Special tokens, and those that the tokenizer has no text of, never are. Where some byte of
 * ASCII is no token, and begins none, a text may come to a point where no token is allowed. */
NODISCARD Status json_tokens_create(const Tokenizer *tokenizer, int64_t choices, JsonTokens **out_tokens);
/* The same of texts: token i has bytes[i]; an empty one is never chosen. Copied. */
JsonTokens *json_tokens_of(const Str *bytes, int64_t count);
void        json_tokens_destroy(JsonTokens *tokens);

/* Words of a mask: (choices + 31) / 32. */
int64_t json_tokens_words(const JsonTokens *tokens);

typedef struct JsonGuide {
    JsonTokens    *tokens; /* borrowed */
    const int32_t *stops;  /* borrowed: the ids that end a text */
    int            num_stops;
    const Str     *leads; /* borrowed */
    int            num_leads;
    int            lead; /* one that begins as the text does */
    size_t         led;  /* bytes of it */
    JsonWalk       walk;
} JsonGuide;

void json_guide_init(JsonGuide *guide, JsonTokens *tokens, const int32_t *stops, int num_stops);

/* The text begins with one of these texts; before the first token. Where one begins with another, what is behind that other is neither {
 * nor blank: the text then tells which it is. */
void json_guide_lead(JsonGuide *guide, const Str *leads, int num_leads);

/* Sets the bits of the ids that may come next in `words`, which are 0: id i is bit i % 32 of words[i / 32]. Behind the object these are the
 * stop ids alone. */
void json_guide_allow(JsonGuide *guide, uint32_t *words);

/* The token was chosen. false: it isn't one that was allowed. */
bool json_guide_push(JsonGuide *guide, int32_t id);

/* The object is closed: a text without stop ids ends here. */
bool json_guide_is_whole(const JsonGuide *guide);
