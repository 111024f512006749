/* Shared by the source files of the tokenizer. */
#pragma once

#include "base/arena.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

typedef struct AddedToken {
    Str     content; /* as found in the text; for normalized tokens in normal form */
    int32_t id;
    bool    single_word, lstrip, rstrip, special;
} AddedToken;

typedef struct TrieNode {
    int32_t child, next; /* first child, next sibling; 0: none */
    int32_t token;       /* index of the added token that ends here; -1: none */
    uint8_t byte;
} TrieNode;

/* A trie of added tokens; at each position of a text the longest token is found. */
typedef struct AddedTrie {
    TrieNode   *nodes; /* nodes[0] is the root */
    int32_t     num_nodes;
    size_t      node_capacity;
    int32_t     first[256]; /* children of the root by byte; 0: none */
    AddedToken *tokens;
    int32_t     num_tokens;
    size_t      token_capacity;
} AddedTrie;

void added_trie_deinit(AddedTrie *trie);
void added_trie_add(AddedTrie *trie, AddedToken token);

typedef struct AddedSplit {
    size_t  start, end;
    int32_t id; /* -1: text between added tokens */
} AddedSplit;

typedef struct AddedSplits {
    AddedSplit *data;
    size_t      len, capacity;
} AddedSplits;

/* Cuts text at added tokens; *out is cleared first. plain_special: special tokens are left as text. */
void added_split(const AddedTrie *trie, const CharTable *table, Str text, bool plain_special, AddedSplits *out);

typedef struct Decoder Decoder; /* a list of steps; immutable after parsing */
NODISCARD Status       decoder_parse(Arena *arena, const JsonValue *json, Decoder **out);
void                   decoder_deinit(Decoder *decoder);

/* Decodes a token as ByteLevel does: its raw bytes if all its characters stand for bytes, else its text. */
Str token_bytes(Arena *arena, Str token);

typedef struct IdInfo {
    Str  text;  /* as written in the file; data NULL: unused id */
    Str  bytes; /* token_bytes of the text */
    bool special;
    bool added; /* an added token: found before the text is cut into words */
} IdInfo;

struct Tokenizer {
    Arena         arena;
    Bpe           bpe;
    Normalizer   *normalizer;
    PreTokenizer *pre;
    Decoder      *decoder;
    AddedTrie     added[2];  /* [0]: found before normalization, [1]: after it */
    bool          raw_bytes; /* words are encoded from raw bytes: the last pre-tokenizer is ByteLevel, and all bytes have tokens */
    bool          has_pre;   /* there is a pre-tokenizer, which cuts words */
    IdInfo       *ids;
    int32_t       num_ids;
    int32_t       num_file_ids;   /* ids below it are in tokenizer.json, the others only in other files */
    TokenIds      prefix, suffix; /* ids that the post-processor adds before and after a text */
    int32_t       bos_id, eos_id, pad_id;
    uint64_t      hash;
};

/* Adds a token to the trie added[normalized]; a normalized token is stored in normal form. */
NODISCARD Status tokenizer_put_added(Tokenizer *t, AddedToken token, bool normalized, RegexScratch *regex);

/* Adds the tokens named by tokenizer_config.json and added_tokens.json. JSON_NULL: the file doesn't exist. */
NODISCARD Status tokenizer_add_beside(Tokenizer *t, const JsonValue *config, const JsonValue *added);

struct TokenizerScratch {
    BpeScratch   *bpe;
    RegexScratch *regex;
    PreScratch    pre;
    StrBuf        repaired, normal[2];
    AddedSplits   splits[2];
    bool          kept_text; /* the text was neither repaired nor normalized */
    TokenAnchor  *anchors;   /* one for each part in splits[0], and one for the end */
    size_t        num_anchors, anchor_capacity;
};
