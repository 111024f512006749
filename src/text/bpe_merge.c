/* Repeatedly merges the most frequent pair, in the words that contain it; only counts of neighbouring pairs change. Heap entries with
 * outdated counts are corrected when they reach the top.
 *
 * To learn the same merges as Hugging Face's trainer, three of its quirks are copied. A merged pair keeps its count. Words that gain a pair
 * later are kept in a heap entry of their own. Of a pair that is merged twice, only the last merge counts. */
#include "text/bpe_merge.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

/* Indices of words. As words are pushed in order, each index occurs once. */
typedef struct WordList {
    uint32_t *data;
    uint32_t  len, capacity;
} WordList;

typedef struct Pair {
    int32_t  left, right;
    int64_t  count;
    int64_t  last_merge; /* index of the pair's last merge in LearnedMerges; -1: none */
    WordList fresh;      /* words that gained the pair since touched_push last ran */
} Pair;

typedef struct HeapEntry {
    int64_t  count;
    uint32_t pair;
    WordList words; /* words to merge in; owned */
} HeapEntry;

typedef struct Word {
    int32_t *symbols;
    uint32_t len;
    int64_t  count;
} Word;

typedef struct Learner {
    Word      *words;
    Pair      *pairs;
    uint32_t   num_pairs;
    size_t     pair_capacity;
    uint32_t  *slots; /* hash table of pair index + 1; 0: empty */
    size_t     num_slots;
    HeapEntry *heap;
    size_t     heap_len, heap_capacity;
    uint32_t  *touched; /* indices of pairs with fresh words */
    size_t     num_touched, touched_capacity;
} Learner;

static size_t pair_slot(const Learner *l, int32_t left, int32_t right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    size_t   at = (hash ^ hash >> 29) & (l->num_slots - 1);
    while (l->slots[at]) {
        const Pair *pair = &l->pairs[l->slots[at] - 1];
        if (pair->left == left && pair->right == right) break;
        at = (at + 1) & (l->num_slots - 1);
    }
    return at;
}

static uint32_t pair_index(Learner *l, int32_t left, int32_t right)
{
    if ((size_t)l->num_pairs * 2 >= l->num_slots) {
        l->num_slots = l->num_slots ? l->num_slots * 2 : 1 << 16;
        free(l->slots);
        l->slots = calloc_or_end(l->num_slots, sizeof *l->slots);
        for (uint32_t i = 0; i < l->num_pairs; i++) l->slots[pair_slot(l, l->pairs[i].left, l->pairs[i].right)] = i + 1;
    }
    size_t at = pair_slot(l, left, right);
    if (l->slots[at]) return l->slots[at] - 1;
    l->pairs = array_room(l->pairs, l->num_pairs + 1, &l->pair_capacity, sizeof *l->pairs);
    l->pairs[l->num_pairs] = (Pair){.left = left, .right = right, .last_merge = -1};
    l->slots[at] = ++l->num_pairs;
    return l->num_pairs - 1;
}

static void pair_change(Learner *l, int32_t left, int32_t right, int64_t count, uint32_t word)
{
    uint32_t index = pair_index(l, left, right);
    Pair    *pair = &l->pairs[index];
    pair->count += count;
    if (count <= 0) return;
    WordList *fresh = &pair->fresh;
    if (fresh->len == 0) {
        l->touched = array_room(l->touched, l->num_touched + 1, &l->touched_capacity, sizeof *l->touched);
        l->touched[l->num_touched++] = index;
    } else if (fresh->data[fresh->len - 1] == word) {
        return;
    }
    if (fresh->len == fresh->capacity) { /* there are millions of lists, most with a word or two: start small */
        fresh->capacity = fresh->capacity ? fresh->capacity * 2 : 4;
        fresh->data = realloc_or_end(fresh->data, fresh->capacity * sizeof *fresh->data);
    }
    fresh->data[fresh->len++] = word;
}

static bool entry_before(const Learner *l, const HeapEntry *a, const HeapEntry *b)
{
    if (a->count != b->count) return a->count > b->count;
    const Pair *x = &l->pairs[a->pair], *y = &l->pairs[b->pair];
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static void heap_push(Learner *l, HeapEntry entry)
{
    l->heap = array_room(l->heap, l->heap_len + 1, &l->heap_capacity, sizeof *l->heap);
    size_t i = l->heap_len++;
    for (; i > 0 && entry_before(l, &entry, &l->heap[(i - 1) / 2]); i = (i - 1) / 2) l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = entry;
}

/* Replaces the top of the heap by `entry` and sifts it down. */
static void heap_replace_top(Learner *l, HeapEntry entry)
{
    size_t i = 0, child;
    while ((child = 2 * i + 1) < l->heap_len) {
        if (child + 1 < l->heap_len && entry_before(l, &l->heap[child + 1], &l->heap[child])) child++;
        if (!entry_before(l, &l->heap[child], &entry)) break;
        l->heap[i] = l->heap[child];
        i = child;
    }
    l->heap[i] = entry;
}

static HeapEntry heap_pop(Learner *l)
{
    HeapEntry top = l->heap[0];
    if (--l->heap_len > 0) heap_replace_top(l, l->heap[l->heap_len]);
    return top;
}

/* Pushes heap entries for pairs with fresh words. */
static void touched_push(Learner *l)
{
    for (size_t i = 0; i < l->num_touched; i++) {
        Pair *pair = &l->pairs[l->touched[i]];
        if (pair->count > 0) {
            heap_push(l, (HeapEntry){pair->count, l->touched[i], pair->fresh});
        } else {
            free(pair->fresh.data);
        }
        pair->fresh = (WordList){0};
    }
    l->num_touched = 0;
}

static void word_merge(Learner *l, uint32_t index, int32_t left, int32_t right, int32_t id)
{
    Word    *word = &l->words[index];
    int32_t *symbols = word->symbols;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < word->len; i++, kept++) {
        if (symbols[i] != left || i + 1 == word->len || symbols[i + 1] != right) {
            symbols[kept] = symbols[i];
            continue;
        }
        if (kept > 0) {
            pair_change(l, symbols[kept - 1], left, -word->count, index);
            pair_change(l, symbols[kept - 1], id, word->count, index);
        }
        if (i + 2 < word->len) {
            pair_change(l, right, symbols[i + 2], -word->count, index);
            pair_change(l, id, symbols[i + 2], word->count, index);
        }
        symbols[kept] = id;
        i++;
    }
    word->len = kept;
}

static void words_load(Learner *l, const WordCounts *words, const int32_t byte_ids[256], Arena *arena)
{
    l->words = arena_array(arena, Word, words->len + 1);
    for (size_t i = 0; i < words->len; i++) {
        Str   text = words->words[i].word;
        Word *word = &l->words[i];
        *word = (Word){arena_array(arena, int32_t, text.len), (uint32_t)text.len, words->words[i].count};
        for (size_t k = 0; k < text.len; k++) word->symbols[k] = byte_ids[(uint8_t)text.data[k]];
        for (size_t k = 0; k + 1 < text.len; k++) pair_change(l, word->symbols[k], word->symbols[k + 1], word->count, (uint32_t)i);
    }
    touched_push(l);
}

/* Returns the id of the merged token; a token with the same text may exist from an earlier merge. */
static int32_t token_join(WordCounts *tokens, const Pair *pair, StrBuf *text)
{
    Str left = tokens->words[pair->left].word, right = tokens->words[pair->right].word;
    strbuf_clear(text);
    strbuf_append(text, left.data, left.len);
    strbuf_append(text, right.data, right.len);
    Str     joined = {text->data, text->len};
    int64_t id = word_counts_find(tokens, joined);
    if (id >= 0) return (int32_t)id;
    word_counts_add(tokens, joined, 0);
    return (int32_t)tokens->len - 1;
}

static void merge_push(Learner *l, LearnedMerges *out, uint32_t pair)
{
    out->data = array_room(out->data, out->len + 1, &out->capacity, sizeof *out->data);
    l->pairs[pair].last_merge = (int64_t)out->len;
    out->data[out->len++] = (LearnedMerge){l->pairs[pair].left, l->pairs[pair].right};
}

static void repeats_drop(Learner *l, LearnedMerges *merges)
{
    size_t kept = 0;
    for (size_t i = 0; i < merges->len; i++) {
        LearnedMerge merge = merges->data[i];
        if (l->pairs[pair_index(l, merge.left, merge.right)].last_merge == (int64_t)i) merges->data[kept++] = merge;
    }
    merges->len = kept;
}

void bpe_learn(const WordCounts *words, const int32_t byte_ids[256], int64_t vocab_size, int64_t min_frequency, WordCounts *tokens,
               LearnedMerges *out)
{
    Learner l = {0};
    Arena   arena = {0};
    StrBuf  text = {0};
    words_load(&l, words, byte_ids, &arena);
    while ((int64_t)tokens->len < vocab_size && l.heap_len > 0) {
        HeapEntry top = l.heap[0];
        if (top.count != l.pairs[top.pair].count) {
            top.count = l.pairs[top.pair].count;
            heap_replace_top(&l, top);
            continue;
        }
        if (top.count < 1 || top.count < min_frequency) break;
        heap_pop(&l);
        Pair    pair = l.pairs[top.pair];
        int32_t id = token_join(tokens, &pair, &text);
        merge_push(&l, out, top.pair);
        for (uint32_t i = 0; i < top.words.len; i++) word_merge(&l, top.words.data[i], pair.left, pair.right, id);
        free(top.words.data);
        touched_push(&l);
    }
    repeats_drop(&l, out);
    for (size_t i = 0; i < l.heap_len; i++) free(l.heap[i].words.data);
    free(l.heap);
    free(l.pairs);
    free(l.slots);
    free(l.touched);
    strbuf_deinit(&text);
    arena_deinit(&arena);
}
