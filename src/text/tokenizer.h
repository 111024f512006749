/* Tokenizer: converts text to ids and back, from a Hugging Face tokenizer.json with a BPE model (byte-level or SentencePiece-style).
 * Immutable after loading: many threads may encode and decode at once, each with its own TokenizerScratch. */
#pragma once

#include "base/arena.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef struct Tokenizer        Tokenizer;
typedef struct TokenizerScratch TokenizerScratch; /* word cache and buffers of one thread */

/* A growing array of ids; zero-initialised: empty, ready to use. */
typedef struct TokenIds {
    int32_t *data;
    size_t   len, capacity;
} TokenIds;
void token_ids_deinit(TokenIds *ids);
void token_ids_push(TokenIds *ids, int32_t id);

/* Loads DIR/tokenizer.json. bos/eos/pad, add_bos_token and further tokens are read from the files beside it, if they exist.
 * ERR_UNSUPPORTED: the message names the unsupported component; ERR_INVALID: the message has file:line:column. */
NODISCARD Status tokenizer_load(const char *dir, Tokenizer **out_tokenizer);
/* As tokenizer_load, but with these texts in place of tokenizer.json and tokenizer_config.json; data NULL: reads the file. */
NODISCARD Status tokenizer_load_with(const char *dir, Str json, Str config, Tokenizer **out_tokenizer);
/* Parses the text of a tokenizer.json, without the files beside it; error messages begin with `name`. */
NODISCARD Status tokenizer_parse(const char *name, const char *json, size_t len, Tokenizer **out_tokenizer);
/* Texts of the files beside a tokenizer.json; an empty text: the file doesn't exist. */
typedef struct TokenizerTexts {
    Str config, generation; /* tokenizer_config.json, generation_config.json */
    Str added, special_map; /* added_tokens.json, special_tokens_map.json */
} TokenizerTexts;
/* Applies these files as tokenizer_load does; call it before the first encode. Tokens that only these files name are added as transformers
 * adds them. If given, add_bos_token and add_eos_token override what the post-processor adds. Error messages begin with `dir`. */
NODISCARD Status tokenizer_configure(Tokenizer *tokenizer, const char *dir, const TokenizerTexts *texts);
void             tokenizer_destroy(Tokenizer *tokenizer);

TokenizerScratch *tokenizer_scratch_create(const Tokenizer *tokenizer);
void              tokenizer_scratch_destroy(TokenizerScratch *scratch);

typedef struct EncodeOptions {
    bool add_special;   /* add the tokens of the file's post-processor (BOS, EOS) */
    bool plain_special; /* encode special tokens that occur in the text as ordinary text (for untrusted input) */
} EncodeOptions;

/* Appends the ids of text[0..len). Bytes that aren't UTF-8 are encoded as U+FFFD. */
NODISCARD Status tokenizer_encode(const Tokenizer *tokenizer, TokenizerScratch *scratch, const char *text, size_t len,
                                  EncodeOptions options, TokenIds *out_ids);

/* The beginning of an added token, or of the text between two added tokens: byte offset in the text, and index in the ids of the last
 * encode. */
typedef struct TokenAnchor {
    size_t byte, token;
    bool   is_added; /* an added token, found before normalization; it may include white space beside it */
} TokenAnchor;
/* Returns the anchors in order; the last one is the end of the text and the ids. They are valid until the next encode. True: the bytes of
 * the tokens are exactly the bytes of the text. Then a token's byte offset is that of the anchor before it, plus tokenizer_token_bytes of
 * the tokens between. */
bool tokenizer_anchors(const Tokenizer *tokenizer, const TokenizerScratch *scratch, const TokenAnchor **out, size_t *out_count);

/* Number of bytes that a token decodes to in any context; -1: the number depends on other tokens, or the id is unknown. The bytes of a
 * byte-level token may be part of a character. */
int64_t tokenizer_token_bytes(const Tokenizer *tokenizer, int32_t id);

/* Appends the bytes that a token adds in the middle of a text; they may be part of a character. An unused id adds none. ERR_UNSUPPORTED if
 * the bytes depend on the token before. */
NODISCARD Status tokenizer_append_bytes(const Tokenizer *tokenizer, int32_t id, StrBuf *out);

/* Appends the text of the ids. skip_special: leaves out special tokens. ERR_INVALID if an id is out of range. */
NODISCARD Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special, StrBuf *out_text);

/* Streaming decoder: returns bytes only once they complete characters. Zero-initialised: ready to use. */
typedef struct TokenStream {
    StrBuf pending;  /* bytes of an incomplete character */
    bool   started;  /* a token was pushed */
    bool   spoke;    /* some text was decoded: leading spaces are kept from now on */
    bool   space;    /* a word ended: write a space before the next token */
    int    stripped; /* characters stripped from the start of the text so far */
} TokenStream;
NODISCARD Status token_stream_push(const Tokenizer *tokenizer, TokenStream *stream, int32_t id, bool skip_special, StrBuf *out_text);
void             token_stream_finish(TokenStream *stream, StrBuf *out_text); /* appends the bytes still pending and frees the stream */

int32_t     tokenizer_vocab_size(const Tokenizer *tokenizer);   /* largest id + 1, added tokens included */
const char *tokenizer_first_beside(const Tokenizer *tokenizer); /* the first token whose id isn't in tokenizer.json; NULL: none */
const char *tokenizer_id_to_token(const Tokenizer *tokenizer, int32_t id); /* as written in the file; NULL: unused id */
bool        tokenizer_is_special(const Tokenizer *tokenizer, int32_t id);
bool        tokenizer_is_added(const Tokenizer *tokenizer, int32_t id); /* whether it is an added token, special or not */
int32_t     tokenizer_bos_id(const Tokenizer *tokenizer);               /* -1: none */
int32_t     tokenizer_eos_id(const Tokenizer *tokenizer);               /* -1: none */
int32_t     tokenizer_pad_id(const Tokenizer *tokenizer);               /* -1: none */
bool        tokenizer_adds_bos(const Tokenizer *tokenizer);             /* whether add_special puts BOS at the start */
uint64_t    tokenizer_hash(const Tokenizer *tokenizer); /* hash of tokenizer.json and of the tokens added from other files; for caches */

/* Token scores (by id) for programs that merge as SentencePiece does: they join the two neighbours whose joined token has the highest
 * score. Tokens made by merges have scores below 0, in the order of the merges; all others have 0. Returns the number of merges that such
 * programs could do and the tokenizer can't, or that they do in another order. 0: such programs give the same tokens. */
size_t tokenizer_scores(const Tokenizer *tokenizer, float *out_scores);
