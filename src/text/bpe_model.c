/* Reads the BPE model of a tokenizer.json into hash tables. */
#include "base/str.h"
#include "text/bpe.h"
#include "text/tokenizer_unicode.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_text(const char *text, size_t len)
{
    uint64_t hash = len, part;
    for (; len >= 8; text += 8, len -= 8) {
        memcpy(&part, text, 8);
        hash = mix(hash, part);
    }
    part = 0;
    memcpy(&part, text, len);
    return mix(hash, part);
}

static uint64_t power_of_two_above(uint64_t count)
{
    uint64_t size = 16;
    while (size < count) size *= 2;
    return size;
}

static int32_t find_hashed(const Bpe *bpe, const char *text, size_t len, uint64_t hash)
{
    for (uint64_t i = hash;; i++) {
        uint32_t slot = bpe->slots[i & bpe->slot_mask];
        if (slot == 0) return -1;
        Str token = bpe->tokens[slot - 1];
        if (token.len == len && memcmp(token.data, text, len) == 0) return (int32_t)slot - 1;
    }
}

int32_t bpe_find(const Bpe *bpe, const char *text, size_t len)
{
    return find_hashed(bpe, text, len, hash_text(text, len));
}

int32_t bpe_find_bytes(const Bpe *bpe, const char *word, size_t len)
{
    for (uint64_t i = hash_text(word, len);; i++) {
        uint32_t slot = bpe->byte_word_slots[i & bpe->byte_word_mask];
        if (slot == 0) return -1;
        Str token = bpe->byte_words[slot - 1];
        if (token.len == len && memcmp(token.data, word, len) == 0) return (int32_t)slot - 1;
    }
}

bool bpe_is_joint(const Bpe *bpe, uint32_t left, uint32_t right)
{
    uint64_t joint = (uint64_t)left << 32 | right;
    for (uint64_t i = mix(joint, 1);; i++) {
        uint64_t slot = bpe->joints[i & bpe->joint_mask];
        if (slot == joint) return true;
        if (slot == UINT64_MAX) return false;
    }
}

const MergeSlot *bpe_merge_find(const Bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint64_t i = mix(pair, 0);; i++) {
        const MergeSlot *slot = &bpe->merges[i & bpe->merge_mask];
        if (slot->pair == pair) return slot;
        if (slot->pair == UINT64_MAX) return NULL;
    }
}

static Status vocab_parse(Arena *arena, const JsonValue *vocab, Bpe *bpe)
{
    FAIL_IF(!vocab || vocab->type != JSON_OBJECT, ERR_INVALID, "model.vocab: expected an object of token: id");
    int64_t largest = -1;
    for (uint32_t i = 0; i < vocab->count; i++) {
        const JsonMember *member = &vocab->members[i];
        FAIL_IF(member->value.type != JSON_INT || member->value.integer < 0 || member->value.integer > BPE_MAX_ID, ERR_INVALID,
                "model.vocab: the id of \"%.*s\" must be a whole number from 0 to %d", (int)member->key.len, member->key.data, BPE_MAX_ID);
        if (member->value.integer > largest) largest = member->value.integer;
    }
    bpe->num_tokens = (int32_t)largest + 1;
    bpe->tokens = arena_array(arena, Str, bpe->num_tokens + 1);
    uint64_t size = power_of_two_above((uint64_t)vocab->count * 2);
    bpe->slots = arena_array(arena, uint32_t, size);
    bpe->slot_mask = size - 1;
    for (uint32_t i = 0; i < vocab->count; i++) {
        const JsonMember *member = &vocab->members[i];
        int32_t           id = (int32_t)member->value.integer;
        FAIL_IF(bpe->tokens[id].data, ERR_INVALID, "model.vocab: \"%.*s\" and \"%s\" have the same id %d", (int)member->key.len,
                member->key.data, bpe->tokens[id].data, id);
        bpe->tokens[id] = (Str){arena_strndup(arena, member->key.data, member->key.len), member->key.len};
        uint64_t at = hash_text(member->key.data, member->key.len);
        while (bpe->slots[at & bpe->slot_mask]) at++;
        bpe->slots[at & bpe->slot_mask] = (uint32_t)id + 1;
    }
    return OK;
}

/* Parses the two sides of a merge, written "a b" or ["a", "b"]. */
static Status merge_sides(const JsonValue *merge, uint32_t index, Str *left, Str *right)
{
    if (merge->type == JSON_ARRAY && merge->count == 2 && merge->items[0].type == JSON_STRING && merge->items[1].type == JSON_STRING) {
        *left = merge->items[0].string;
        *right = merge->items[1].string;
        return OK;
    }
    FAIL_IF(merge->type != JSON_STRING, ERR_INVALID, "model.merges: merge %u must be \"a b\" or [\"a\", \"b\"]", index);
    Str         text = merge->string;
    const char *space = memchr(text.data, ' ', text.len);
    FAIL_IF(!space, ERR_INVALID, "model.merges: merge %u (\"%.*s\") must be two tokens with a space between", index, (int)text.len,
            text.data);
    *left = (Str){text.data, (size_t)(space - text.data)};
    *right = (Str){space + 1, text.len - left->len - 1};
    FAIL_IF(memchr(right->data, ' ', right->len), ERR_INVALID, "model.merges: merge %u (\"%.*s\") has more than one space", index,
            (int)text.len, text.data);
    return OK;
}

/* Number of merges read together. Each merge needs random accesses to the vocabulary; prefetching a whole batch halves the
 * time. */
enum { MERGE_BATCH = 32 };

/* The text of a token in a merge, to be looked up. */
typedef struct Wanted {
    Str      text;
    uint64_t hash;
} Wanted;

typedef struct MergeBatch {
    Wanted wanted[MERGE_BATCH * 3]; /* per merge: left side, right side, merged token */
    size_t joined_at[MERGE_BATCH];  /* offset of each merged token's text in `joined` */
    StrBuf joined;
} MergeBatch;

static void wanted_prefetch(const Bpe *bpe, Wanted *wanted, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        wanted[i].hash = hash_text(wanted[i].text.data, wanted[i].text.len);
        __builtin_prefetch(&bpe->slots[wanted[i].hash & bpe->slot_mask]);
    }
    for (int step = 0; step < 2; step++) {
        for (size_t i = 0; i < count; i++) {
            uint32_t slot = bpe->slots[wanted[i].hash & bpe->slot_mask];
            if (slot) __builtin_prefetch(step == 0 ? (const void *)&bpe->tokens[slot - 1] : bpe->tokens[slot - 1].data);
        }
    }
}

static Status wanted_id(const Bpe *bpe, uint32_t index, const Wanted *wanted, int32_t *out_id)
{
    *out_id = find_hashed(bpe, wanted->text.data, wanted->text.len, wanted->hash);
    FAIL_IF(*out_id < 0, ERR_INVALID, "model.merges: merge %u names \"%.*s\", which model.vocab doesn't have", index, (int)wanted->text.len,
            wanted->text.data);
    return OK;
}

static Status merge_insert(Bpe *bpe, uint32_t index, const Wanted wanted[3])
{
    int32_t left, right, id;
    TRY(wanted_id(bpe, index, &wanted[0], &left));
    TRY(wanted_id(bpe, index, &wanted[1], &right));
    TRY(wanted_id(bpe, index, &wanted[2], &id));
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, at = mix(pair, 0);
    while (bpe->merges[at & bpe->merge_mask].pair != UINT64_MAX && bpe->merges[at & bpe->merge_mask].pair != pair) at++;
    bpe->merges[at & bpe->merge_mask] = (MergeSlot){pair, index, id}; /* if a pair occurs twice, the last merge counts */
    return OK;
}

/* Reads up to MERGE_BATCH merges, from index `first` on. */
static Status merges_read(Bpe *bpe, const JsonValue *merges, uint32_t first, MergeBatch *batch)
{
    uint32_t count = 0, most = merges->count - first < MERGE_BATCH ? merges->count - first : MERGE_BATCH;
    size_t   cut = bpe->continuing_prefix.len;
    strbuf_clear(&batch->joined);
    for (; count < most; count++) {
        Str left, right;
        if (merge_sides(&merges->items[first + count], first + count, &left, &right) != OK) break;
        bool is_cut = str_starts(right, bpe->continuing_prefix);
        batch->wanted[count * 3].text = left;
        batch->wanted[count * 3 + 1].text = right;
        batch->joined_at[count] = batch->joined.len;
        strbuf_append(&batch->joined, left.data, left.len);
        strbuf_append(&batch->joined, right.data + (is_cut ? cut : 0), right.len - (is_cut ? cut : 0));
    }
    for (uint32_t i = 0; i < count; i++) {
        size_t at = batch->joined_at[i], end = i + 1 < count ? batch->joined_at[i + 1] : batch->joined.len;
        batch->wanted[i * 3 + 2].text = (Str){strbuf_cstr(&batch->joined) + at, end - at};
    }
    wanted_prefetch(bpe, batch->wanted, count * 3);
    for (uint32_t i = 0; i < count; i++) TRY(merge_insert(bpe, first + i, &batch->wanted[i * 3]));
    if (count == most) return OK;
    Str left, right; /* all earlier merges are valid: this is the first bad one */
    return merge_sides(&merges->items[first + count], first + count, &left, &right);
}

static Status merges_parse(Arena *arena, const JsonValue *merges, Bpe *bpe)
{
    FAIL_IF(!merges || merges->type != JSON_ARRAY, ERR_INVALID, "model.merges: expected a list");
    uint64_t size = power_of_two_above((uint64_t)merges->count * 2 + 1);
    bpe->merges = arena_array(arena, MergeSlot, size);
    bpe->merge_mask = size - 1;
    for (uint64_t i = 0; i < size; i++) bpe->merges[i].pair = UINT64_MAX;
    MergeBatch batch = {.joined = {0}};
    Status     status = OK;
    for (uint32_t i = 0; i < merges->count && status == OK; i += MERGE_BATCH) status = merges_read(bpe, merges, i, &batch);
    strbuf_deinit(&batch.joined);
    return status;
}

static void byte_ids_find(Bpe *bpe)
{
    bpe->has_all_bytes = bpe->has_all_fallback = true;
    for (int byte = 0; byte < 256; byte++) {
        char   text[8];
        size_t len = utf8_encode(byte_to_char((uint8_t)byte), text);
        bpe->byte_ids[byte] = bpe_find(bpe, text, len);
        memcpy(text, "<0x00>", 6);
        text[3] = "0123456789ABCDEF"[byte >> 4];
        text[4] = "0123456789ABCDEF"[byte & 15];
        bpe->fallback_ids[byte] = bpe_find(bpe, text, 6);
        bool possible = byte != 0xC0 && byte != 0xC1 && byte < 0xF5; /* whether the byte can occur in UTF-8 */
        if (bpe->byte_ids[byte] < 0 && possible) bpe->has_all_bytes = false;
        if (bpe->fallback_ids[byte] < 0 && possible) bpe->has_all_fallback = false;
    }
    if (bpe->continuing_prefix.len || bpe->word_suffix.len) bpe->has_all_bytes = false;
}

/* With ignore_merges whole words are looked up in the vocabulary. For words as raw bytes this needs the tokens' raw bytes as well. */
static void byte_words_build(Arena *arena, Bpe *bpe)
{
    uint64_t size = power_of_two_above((uint64_t)bpe->num_tokens * 2);
    bpe->byte_words = arena_array(arena, Str, bpe->num_tokens + 1);
    bpe->byte_word_slots = arena_array(arena, uint32_t, size);
    bpe->byte_word_mask = size - 1;
    for (int32_t id = 0; id < bpe->num_tokens; id++) {
        Str    token = bpe->tokens[id];
        size_t len = 0, bytes;
        bool   all = token.len > 0;
        char  *word = arena_alloc(arena, token.len + 1);
        for (size_t at = 0; at < token.len && all; at += bytes) {
            int byte = char_to_byte(utf8_decode(token.data + at, &bytes));
            all = byte >= 0;
            word[len++] = (char)byte;
        }
        if (!all) continue;
        bpe->byte_words[id] = (Str){word, len};
        uint64_t at = hash_text(word, len);
        while (bpe->byte_word_slots[at & bpe->byte_word_mask]) at++;
        bpe->byte_word_slots[at & bpe->byte_word_mask] = (uint32_t)id + 1;
    }
}

static void joint_add(Bpe *bpe, uint64_t joint)
{
    uint64_t at = mix(joint, 1);
    while (bpe->joints[at & bpe->joint_mask] != UINT64_MAX && bpe->joints[at & bpe->joint_mask] != joint) at++;
    bpe->joints[at & bpe->joint_mask] = joint;
}

/* Walks the pairs of neighbouring characters in merged tokens: marks them in the ASCII tables, and calls joint_add unless bpe->joints is
 * NULL. Returns the number of pairs. */
static uint64_t joints_walk(Bpe *bpe)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i <= bpe->merge_mask; i++) {
        if (bpe->merges[i].pair == UINT64_MAX) continue;
        Str      token = bpe->tokens[bpe->merges[i].id];
        size_t   size;
        uint32_t left = token.len ? utf8_decode(token.data, &size) : 0;
        for (size_t at = token.len ? size : 0; at < token.len; at += size) {
            uint32_t right = utf8_decode(token.data + at, &size);
            count++;
            if (bpe->joints) joint_add(bpe, (uint64_t)left << 32 | right);
            if (right < 128 && left < 128) bpe->ascii_joint[left][right] = 1;
            if (right == 0x2581 && left < 128) bpe->space_joint[left] = 1;
            if (right == 0x2581 && left >= 128 && left != 0x2581) bpe->space_joint_other = true;
            left = right;
        }
    }
    return count;
}

/* Sets can_cut and, if it is true, builds the tables of joints. Cutting a text between characters is only correct on two conditions. Each
 * symbol is a single character, or a byte that no merge contains. And unknown characters can't fuse across a cut. */
static void joints_build(Arena *arena, Bpe *bpe)
{
    bpe->can_cut =
        !bpe->ignore_merges && !bpe->continuing_prefix.len && !bpe->word_suffix.len && bpe->byte_fallback && bpe->has_all_fallback;
    if (!bpe->can_cut) return;
    bool *is_byte = calloc_or_end((size_t)bpe->num_tokens + 1, sizeof *is_byte);
    for (int byte = 0; byte < 256; byte++)
        if (bpe->fallback_ids[byte] >= 0) is_byte[bpe->fallback_ids[byte]] = true;
    for (uint64_t i = 0; i <= bpe->merge_mask; i++) {
        uint64_t pair = bpe->merges[i].pair;
        if (pair != UINT64_MAX && (is_byte[pair >> 32] || is_byte[(uint32_t)pair])) bpe->can_cut = false;
    }
    free(is_byte);
    if (!bpe->can_cut) return;
    uint64_t  size = power_of_two_above(joints_walk(bpe) * 2 + 1);
    uint64_t *joints = arena_array(arena, uint64_t, size);
    for (uint64_t i = 0; i < size; i++) joints[i] = UINT64_MAX;
    bpe->joints = joints;
    bpe->joint_mask = size - 1;
    joints_walk(bpe);
}

Status bpe_parse(Arena *arena, const JsonValue *model, Bpe *out)
{
    const char *type = "BPE", *text = NULL;
    double      dropout = 0;
    *out = (Bpe){.unk_id = -1, .continuing_prefix = {"", 0}, .word_suffix = {"", 0}};
    FAIL_IF(!model || model->type != JSON_OBJECT, ERR_INVALID, "\"model\" must be an object");
    json_get_str(model, "type", &type);
    FAIL_IF(strcmp(type, "BPE") != 0, ERR_UNSUPPORTED, "model type \"%s\" isn't supported, only BPE is", type);
    FAIL_IF(json_get_double(model, "dropout", &dropout) && dropout != 0, ERR_UNSUPPORTED,
            "model.dropout %g isn't supported: set it to null", dropout);
    json_get_bool(model, "byte_fallback", &out->byte_fallback);
    json_get_bool(model, "fuse_unk", &out->fuse_unk);
    json_get_bool(model, "ignore_merges", &out->ignore_merges);
    if (json_get_str(model, "continuing_subword_prefix", &text)) out->continuing_prefix = str_of(arena_strdup(arena, text));
    if (json_get_str(model, "end_of_word_suffix", &text)) out->word_suffix = str_of(arena_strdup(arena, text));
    TRY(vocab_parse(arena, json_get(model, "vocab"), out));
    TRY(merges_parse(arena, json_get(model, "merges"), out));
    if (json_get_str(model, "unk_token", &text)) {
        out->unk_id = bpe_find(out, text, strlen(text));
        FAIL_IF(out->unk_id < 0, ERR_INVALID, "model.unk_token \"%s\" isn't in model.vocab", text);
    }
    byte_ids_find(out);
    if (out->ignore_merges) byte_words_build(arena, out);
    joints_build(arena, out);
    return OK;
}
