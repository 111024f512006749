/* The BPE model: vocabulary, merges, and the encoding of one word. */
#pragma once

#include "base/json.h"
#include "text/tokenizer.h"

enum { BPE_MAX_ID = (1 << 22) - 1 }; /* an id above it is taken for a damaged file */

typedef struct MergeSlot {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: empty */
    uint32_t rank;
    int32_t  id; /* of the merged token */
} MergeSlot;

/* Immutable after bpe_parse. */
typedef struct Bpe {
    Str      *tokens;     /* by id; data NULL: unused id */
    int32_t   num_tokens; /* largest id + 1 */
    uint32_t *slots;      /* text -> id + 1, open addressing */
    uint64_t  slot_mask;

    MergeSlot *merges;
    uint64_t   merge_mask;
    uint32_t   num_merges;

    int32_t   byte_ids[256];     /* of a byte's stand-in character, -1: absent */
    int32_t   fallback_ids[256]; /* of "<0x00>" to "<0xFF>", -1: absent */
    bool      has_all_bytes;     /* every byte that UTF-8 can hold has its stand-in: words may stay bytes */
    bool      byte_fallback, has_all_fallback;
    bool      fuse_unk, ignore_merges;
    int32_t   unk_id; /* -1: none */
    Str       continuing_prefix, word_suffix;
    uint32_t *byte_word_slots; /* ignore_merges: raw bytes -> id + 1, beside byte_words; NULL else */
    Str      *byte_words;
    uint64_t  byte_word_mask;

    /* Cutting text that has no pre-tokenizer: where no merge can join two characters, both sides are words alone. */
    bool      can_cut;
    uint64_t *joints; /* left << 32 | right of all neighbours inside merged tokens; open addressing, UINT64_MAX: empty */
    uint64_t  joint_mask;
    uint8_t   space_joint[128];      /* ASCII characters that some token has before U+2581 */
    uint8_t   ascii_joint[128][128]; /* the joints of ASCII characters */
    bool      space_joint_other;     /* another character but U+2581 itself stands before U+2581 in some token */
} Bpe;

/* `model` is the value of "model". raw_bytes: words come as bytes when has_all_bytes. */
NODISCARD Status bpe_parse(Arena *arena, const JsonValue *model, Bpe *out);

int32_t          bpe_find(const Bpe *bpe, const char *text, size_t len);      /* -1: absent */
const MergeSlot *bpe_merge_find(const Bpe *bpe, int32_t left, int32_t right); /* NULL: none */
/* With ignore_merges: the token that is these raw bytes; -1: none. */
int32_t bpe_find_bytes(const Bpe *bpe, const char *word, size_t len);
/* With can_cut: some merged token has these characters side by side. */
bool bpe_is_joint(const Bpe *bpe, uint32_t left, uint32_t right);

/* Symbols of the word at hand, and the cache; memory of one thread. */
typedef struct BpeScratch BpeScratch;
BpeScratch               *bpe_scratch_create(void);
void                      bpe_scratch_destroy(BpeScratch *scratch);

/* Appends the ids of one word, len > 0. `readable` bytes may be read at word (>= len). raw_bytes: each byte is a
 * symbol; else characters are, and word is valid UTF-8. */
void bpe_encode_word(const Bpe *bpe, BpeScratch *scratch, const char *word, size_t len, size_t readable, bool raw_bytes, TokenIds *out);

/* The same for a text without pre-tokenizer: cuts it where no merge can cross, for speed. */
void bpe_encode_text(const Bpe *bpe, BpeScratch *scratch, const char *text, size_t len, TokenIds *out);
