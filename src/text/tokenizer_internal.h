/* What the files of the tokenizer share. */
#pragma once

#include "base/arena.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

typedef struct AddedToken {
    Str     content; /* as in the text; of normalized tokens the normal form */
    int32_t id;
    bool    single_word, lstrip, rstrip, special;
} AddedToken;

typedef struct TrieNode {
    int32_t child, next; /* first below, next beside; 0: none */
    int32_t token;       /* index of an added token, -1: none ends here */
    uint8_t byte;
} TrieNode;

/* Added tokens of one kind, found in a text: at each place the longest. */
typedef struct AddedTrie {
    TrieNode   *nodes; /* nodes[0] is the root */
    int32_t     num_nodes;
    size_t      node_capacity;
    int32_t     first[256]; /* children of the root, 0: none */
    AddedToken *tokens;
    int32_t     num_tokens;
    size_t      token_capacity;
} AddedTrie;

void added_trie_deinit(AddedTrie *trie);
void added_trie_add(AddedTrie *trie, AddedToken token);

typedef struct AddedSplit {
    size_t  start, end;
    int32_t id; /* -1: text between tokens */
} AddedSplit;

typedef struct AddedSplits {
    AddedSplit *data;
    size_t      len, capacity;
} AddedSplits;

/* Cuts text at added tokens; out is cleared first. plain_special leaves special ones as text. */
void added_split(const AddedTrie *trie, const CharTable *table, Str text, bool plain_special, AddedSplits *out);

typedef struct Decoder Decoder; /* a list of steps; immutable */
NODISCARD Status       decoder_parse(Arena *arena, const JsonValue *json, Decoder **out);
void                   decoder_deinit(Decoder *decoder);

/* What the ByteLevel decoder makes of a token: its bytes when all its characters stand for bytes, else its own text. */
Str token_bytes(Arena *arena, Str token);

typedef struct IdInfo {
    Str  text;  /* the token as in the file; data NULL: unused id */
    Str  bytes; /* what ByteLevel decodes it to */
    bool special;
    bool added; /* found in a text before words are made */
} IdInfo;

struct Tokenizer {
    Arena         arena;
    Bpe           bpe;
    Normalizer   *normalizer;
    PreTokenizer *pre;
    Decoder      *decoder;
    AddedTrie     added[2];  /* found before the normalizer, and after it */
    bool          raw_bytes; /* words stay bytes: the last pre-tokenizer is ByteLevel and the vocabulary complete */
    bool          has_pre;   /* a pre-tokenizer cuts words */
    IdInfo       *ids;
    int32_t       num_ids;
    int32_t       num_file_ids;   /* of tokenizer.json: those from here on are named only beside it */
    TokenIds      prefix, suffix; /* what the post-processor puts around a text */
    int32_t       bos_id, eos_id, pad_id;
    uint64_t      hash;
};

/* Into the trie of its kind; a normalized one is looked for in its normal form. */
NODISCARD Status tokenizer_put_added(Tokenizer *t, AddedToken token, bool normalized, RegexScratch *regex);

/* Adds the tokens that tokenizer_config.json and added_tokens.json name: JSON_NULL stands for a file that isn't there. */
NODISCARD Status tokenizer_add_beside(Tokenizer *t, const JsonValue *config, const JsonValue *added);

struct TokenizerScratch {
    BpeScratch   *bpe;
    RegexScratch *regex;
    PreScratch    pre;
    StrBuf        repaired, normal[2];
    AddedSplits   splits[2];
    bool          kept_text; /* nothing was repaired or normalized */
    TokenAnchor  *anchors;   /* of splits[0], and the end */
    size_t        num_anchors, anchor_capacity;
};
