/* The BPE model: vocabulary, merges, and encoding of single words. */
#pragma once

#include "base/json.h"
#include "text/tokenizer.h"

enum { BPE_MAX_ID = (1 << 22) - 1 }; /* larger ids are taken for a damaged file */

typedef struct MergeSlot {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: empty */
    uint32_t rank;
    int32_t  id; /* id of the merged token */
} MergeSlot;

/* Immutable after bpe_parse. */
typedef struct Bpe {
    Str      *tokens;     /* by id; data NULL: the id is unused */
    int32_t   num_tokens; /* largest id + 1 */
    uint32_t *slots;      /* hash table from text to id + 1, open addressing; 0: empty */
    uint64_t  slot_mask;

    MergeSlot *merges;
    uint64_t   merge_mask;

    int32_t   byte_ids[256];     /* id of the byte's stand-in character (byte_to_char); -1: absent */
    int32_t   fallback_ids[256]; /* ids of "<0x00>" to "<0xFF>"; -1: absent */
    bool      has_all_bytes;     /* all bytes that occur in UTF-8 have byte_ids, so words can be encoded from raw bytes */
    bool      byte_fallback, has_all_fallback;
    bool      fuse_unk, ignore_merges;
    int32_t   unk_id; /* -1: none */
    Str       continuing_prefix, word_suffix;
    uint32_t *byte_word_slots; /* with ignore_merges: hash table from raw bytes to id + 1; else NULL */
    Str      *byte_words;
    uint64_t  byte_word_mask;

    /* For cutting text without a pre-tokenizer: the text can be cut between two neighbouring characters that no merged token contains side
     * by side. */
    bool      can_cut;
    uint64_t *joints; /* left << 32 | right for neighbouring characters in merged tokens; hash table, open addressing; UINT64_MAX: empty */
    uint64_t  joint_mask;
    uint8_t   space_joint[128];      /* [c]: some merged token contains ASCII character c followed by U+2581 */
    uint8_t   ascii_joint[128][128]; /* [left][right]: 1 if the ASCII characters are a joint */
    bool      space_joint_other;     /* some merged token contains a non-ASCII character other than U+2581 before U+2581 */
} Bpe;

/* Parses `model`, the value of "model" in a tokenizer.json. */
NODISCARD Status bpe_parse(Arena *arena, const JsonValue *model, Bpe *out);

int32_t          bpe_find(const Bpe *bpe, const char *text, size_t len);      /* returns the id; -1: absent */
const MergeSlot *bpe_merge_find(const Bpe *bpe, int32_t left, int32_t right); /* NULL: no such merge */
/* With ignore_merges: the id of the token with these raw bytes; -1: none. */
int32_t bpe_find_bytes(const Bpe *bpe, const char *word, size_t len);
/* With can_cut: whether some merged token contains these two characters side by side. */
bool bpe_is_joint(const Bpe *bpe, uint32_t left, uint32_t right);

/* Working memory of one thread: the symbols of the current word, and the cache. */
typedef struct BpeScratch BpeScratch;
BpeScratch               *bpe_scratch_create(void);
void                      bpe_scratch_destroy(BpeScratch *scratch);

/* Appends the ids of one word, len > 0. `readable` >= len: number of bytes that may be read from `word` on. raw_bytes: each byte is a
 * symbol; else each character is, and the word must be valid UTF-8. */
void bpe_encode_word(const Bpe *bpe, BpeScratch *scratch, const char *word, size_t len, size_t readable, bool raw_bytes, TokenIds *out);

/* As bpe_encode_word, for a text without a pre-tokenizer: cuts the text where no merge can cross, which is faster. */
void bpe_encode_text(const Bpe *bpe, BpeScratch *scratch, const char *text, size_t len, TokenIds *out);
