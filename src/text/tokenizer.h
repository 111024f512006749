/* Tokenizer: a Hugging Face tokenizer.json of model type BPE, byte-level or SentencePiece-style, text to ids and back.
 * Immutable after loading: encode and decode may run in many threads, each with a TokenizerScratch of its own. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef struct Tokenizer        Tokenizer;
typedef struct TokenizerScratch TokenizerScratch; /* word cache and buffers of one thread */

/* Ids grow here; zero-initialised is ready to use. */
typedef struct TokenIds {
    int32_t *data;
    size_t   len, capacity;
} TokenIds;
void token_ids_deinit(TokenIds *ids);
void token_ids_push(TokenIds *ids, int32_t id);

/* Loads DIR/tokenizer.json, and bos/eos/pad, add_bos_token and tokens from the files beside it where present. ERR_UNSUPPORTED names a
 * component that isn't supported, ERR_INVALID says file:line:column. */
NODISCARD Status tokenizer_load(const char *dir, Tokenizer **out_tokenizer);
/* The same with these texts in place of tokenizer.json and tokenizer_config.json; data NULL: the folder's own. */
NODISCARD Status tokenizer_load_with(const char *dir, Str json, Str config, Tokenizer **out_tokenizer);
/* The same from the text of a tokenizer.json; `name` starts its errors. */
NODISCARD Status tokenizer_parse(const char *name, const char *json, size_t len, Tokenizer **out_tokenizer);
/* Texts of the files beside a tokenizer.json; empty: no such file. */
typedef struct TokenizerTexts {
    Str config, generation; /* tokenizer_config.json, generation_config.json */
    Str added, special_map; /* added_tokens.json, special_tokens_map.json */
} TokenizerTexts;
/* Before the first encode: takes over what they say, as tokenizer_load does; `dir` starts errors. Tokens that they name and tokenizer.json
 * doesn't have are added as transformers adds them. add_bos_token and add_eos_token, where given, decide over what the post-processor
 * adds. */
NODISCARD Status tokenizer_configure(Tokenizer *tokenizer, const char *dir, const TokenizerTexts *texts);
void             tokenizer_destroy(Tokenizer *tokenizer);

TokenizerScratch *tokenizer_scratch_create(const Tokenizer *tokenizer);
void              tokenizer_scratch_destroy(TokenizerScratch *scratch);

typedef struct EncodeOptions {
    bool add_special;   /* what the file's post-processor adds (BOS, EOS) */
    bool plain_special; /* true: special tokens written in the text are ordinary text (untrusted input) */
} EncodeOptions;

/* Appends the ids of text[0..len). Bytes that aren't UTF-8 are encoded as U+FFFD is. */
NODISCARD Status tokenizer_encode(const Tokenizer *tokenizer, TokenizerScratch *scratch, const char *text, size_t len,
                                  EncodeOptions options, TokenIds *out_ids);

/* Where an added token, or a text between two, begins: in the text and in the ids of the last encode. */
typedef struct TokenAnchor {
    size_t byte, token;
    bool   is_added; /* a token that is found before the normalizer; it may have taken the blanks beside it */
} TokenAnchor;
/* In order, the end of both last; valid until the next encode. true: every token is bytes of the text, so that what it adds to
 * its anchor is tokenizer_token_bytes. */
bool tokenizer_anchors(const Tokenizer *tokenizer, const TokenizerScratch *scratch, const TokenAnchor **out, size_t *out_count);

/* Bytes a token decodes to, whatever stands beside it; -1: that depends. A byte-level token may be a part of a character. */
int64_t tokenizer_token_bytes(const Tokenizer *tokenizer, int32_t id);

/* Appends the bytes that a token adds to a text that has begun; they may be parts of characters. None for an unused id. ERR_UNSUPPORTED
 * where they depend on the token before. */
NODISCARD Status tokenizer_append_bytes(const Tokenizer *tokenizer, int32_t id, StrBuf *out);

/* Appends the text of ids; skip_special leaves out special tokens. ERR_INVALID for an id out of range. */
NODISCARD Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special, StrBuf *out_text);

/* Streaming decode: bytes are handed out only when they complete characters. Zero-initialised is ready to use. */
typedef struct TokenStream {
    StrBuf pending;  /* bytes of an unfinished character */
    bool   started;  /* a token came already */
    bool   spoke;    /* text came already: a leading space is kept */
    bool   space;    /* a word ended: a space comes before the next token */
    int    stripped; /* characters taken off the start */
} TokenStream;
NODISCARD Status token_stream_push(const Tokenizer *tokenizer, TokenStream *stream, int32_t id, bool skip_special, StrBuf *out_text);
void             token_stream_finish(TokenStream *stream, StrBuf *out_text); /* hands out what is left; frees */

int32_t     tokenizer_vocab_size(const Tokenizer *tokenizer);   /* largest id + 1, added tokens included */
const char *tokenizer_first_beside(const Tokenizer *tokenizer); /* the first token whose id tokenizer.json doesn't have; NULL: none */
const char *tokenizer_id_to_token(const Tokenizer *tokenizer, int32_t id); /* as in the file; NULL: unused id */
bool        tokenizer_is_special(const Tokenizer *tokenizer, int32_t id);
bool        tokenizer_is_added(const Tokenizer *tokenizer, int32_t id); /* an added token: found as a whole, special or not */
int32_t     tokenizer_bos_id(const Tokenizer *tokenizer);               /* -1: none */
int32_t     tokenizer_eos_id(const Tokenizer *tokenizer);               /* -1: none */
int32_t     tokenizer_pad_id(const Tokenizer *tokenizer);               /* -1: none */
bool        tokenizer_adds_bos(const Tokenizer *tokenizer);             /* add_special puts BOS first */
uint64_t    tokenizer_hash(const Tokenizer *tokenizer); /* of tokenizer.json's bytes and the tokens named beside it: for caches */

/* For readers that join the neighbours whose joined token has the highest score, as SentencePiece does: scores by id, below 0 for what
 * merges make, in the order of the merges. Returns how many of the merges that such readers may do aren't the tokenizer's, or come in
 * another order: 0 means that they make the same tokens. */
size_t tokenizer_scores(const Tokenizer *tokenizer, float *out_scores);
