/* JsonGuide: tells which tokens may come next so that a text becomes one JSON object (RFC 8259) and ends with it; a given text may precede
 * the object. Strings are valid UTF-8, and escaped surrogates come in pairs. Nesting, consecutive blanks and digits are limited, so that a
 * model can't produce them for ever. A key may occur twice. */
#pragma once

#include "base/json_walk.h"
#include "text/tokenizer.h"

/* Nesting of 32; 24 blanks in a row, enough for a newline and an indent; numbers of 32 digits with exponents of 2 digits, which a double
 * can hold. */
extern const JsonLimits json_guide_limits;

/* The bytes of all tokens, sorted so that shared beginnings are walked only once, and a cache of masks. Guides of one thread share it. */
typedef struct JsonTokens JsonTokens;

/* Ids from 0 to `choices` - 1 may be chosen, except special tokens and tokens without text. If some ASCII byte begins no token, a text may
 * reach a point where no token is allowed. */
NODISCARD Status json_tokens_create(const Tokenizer *tokenizer, int64_t choices, JsonTokens **out_tokens);
/* Like json_tokens_create, from texts: token i has bytes[i]; an empty one is never chosen. The texts are copied. */
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
    int            lead; /* index of a lead that begins as the text does */
    size_t         led;  /* bytes of the text that belong to the lead */
    JsonWalk       walk;
} JsonGuide;

void json_guide_init(JsonGuide *guide, JsonTokens *tokens, const int32_t *stops, int num_stops);

/* Call before the first token: the text must begin with one of these leads. If a lead begins with a shorter lead, the longer
 * one's next byte must be neither { nor a blank, so that the text tells the two apart. */
void json_guide_lead(JsonGuide *guide, const Str *leads, int num_leads);

/* Sets the bits of the ids that may come next in `words`, which are 0 before: id i is bit i % 32 of words[i / 32]. After the object only
 * the stop ids may come. */
void json_guide_allow(JsonGuide *guide, uint32_t *words);

/* Advances by the chosen token. false: that token wasn't allowed. */
bool json_guide_push(JsonGuide *guide, int32_t id);

/* Whether the object is closed. If there are no stop ids, the text ends here. */
bool json_guide_is_whole(const JsonGuide *guide);
