/* Encodes words. Merges are applied in the order of their rank; of equal ranks the leftmost first. Short words keep the ranks of their
 * pairs in an array and search it for the smallest. Long words use a linked list and a heap, so that a megabyte without a space takes O(n
 * log n). Words of up to 31 bytes are cached: one cache line holds a word and its ids. */
#include "text/bpe.h"
#include "base/array.h"
#include "base/avx2.h"
#include "base/str.h"
#include "text/tokenizer_unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    CACHE_WORD_BYTES = 31,
    CACHE_WORD_IDS = 7,
    CACHE_FIRST_SETS = 1 << 6, /* sets of two lines; doubled as the cache fills */
    CACHE_MOST_SETS = 1 << 15, /* 4 MB per thread; with half as many sets, 4 MB of source code took a quarter longer */
    SHORT_WORD = 48,           /* most symbols of a short word; longer words use the heap */
    NO_RANK = -1               /* converted to uint32_t, the largest rank */
};

/* 64 bytes; len 0: the line is empty. */
typedef struct CacheLine {
    char    word[CACHE_WORD_BYTES]; /* padded with zeros */
    uint8_t len;
    int32_t ids[CACHE_WORD_IDS];
    int32_t count;
} CacheLine;
_Static_assert(sizeof(CacheLine) == 64, "one cache line");

typedef struct HeapEntry {
    uint32_t rank, at;    /* order: by rank, then by position `at` */
    int32_t  left, right; /* ids of the pair when the entry was pushed; if the symbols changed since, the entry is stale */
    int32_t  id;
} HeapEntry;

struct BpeScratch {
    CacheLine *cache; /* 2 * (set_mask + 1) lines, aligned to 64 bytes */
    uint64_t   set_mask;
    uint64_t   num_kept; /* words inserted since the cache last grew */
    int32_t   *ids;
    uint32_t  *ranks;           /* short words: rank of the pair (i, i + 1) */
    int32_t   *merged;          /* short words: id of the merged pair */
    int64_t   *previous, *next; /* long words: linked list of the remaining symbols */
    size_t     capacity;
    HeapEntry *heap;
    size_t     heap_len, heap_capacity;
};

static CacheLine *cache_create(uint64_t num_sets)
{
    size_t     bytes = sizeof(CacheLine) * 2 * num_sets;
    CacheLine *cache = aligned_alloc(64, bytes);
    if (!cache) fatal_out_of_memory(bytes);
    return memset(cache, 0, bytes);
}

BpeScratch *bpe_scratch_create(void)
{
    BpeScratch *scratch = calloc_or_end(1, sizeof *scratch);
    scratch->cache = cache_create(CACHE_FIRST_SETS);
    scratch->set_mask = CACHE_FIRST_SETS - 1;
    return scratch;
}

void bpe_scratch_destroy(BpeScratch *scratch)
{
    if (!scratch) return;
    free(scratch->cache);
    free(scratch->ids);
    free(scratch->ranks);
    free(scratch->merged);
    free(scratch->previous);
    free(scratch->next);
    free(scratch->heap);
    free(scratch);
}

/* Makes room for the symbols of a word of len bytes. */
static void symbols_reserve(BpeScratch *s, size_t len)
{
    if (len <= s->capacity) return;
    s->capacity = len + len / 2 + 64;
    s->ids = realloc_or_end(s->ids, s->capacity * sizeof *s->ids);
    s->ranks = realloc_or_end(s->ranks, s->capacity * sizeof *s->ranks);
    s->merged = realloc_or_end(s->merged, s->capacity * sizeof *s->merged);
    s->previous = realloc_or_end(s->previous, s->capacity * sizeof *s->previous);
    s->next = realloc_or_end(s->next, s->capacity * sizeof *s->next);
}

static void rank_set(const Bpe *bpe, BpeScratch *s, size_t at)
{
    const MergeSlot *merge = bpe_merge_find(bpe, s->ids[at], s->ids[at + 1]);
    s->ranks[at] = merge ? merge->rank : (uint32_t)NO_RANK;
    s->merged[at] = merge ? merge->id : -1;
}

static size_t merge_short(const Bpe *bpe, BpeScratch *s, size_t count)
{
    for (size_t i = 0; i + 1 < count; i++) rank_set(bpe, s, i);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (s->ranks[i] < s->ranks[best]) best = i;
        if (s->ranks[best] == (uint32_t)NO_RANK) break;
        s->ids[best] = s->merged[best];
        size_t tail = count - best - 2;
        memmove(s->ids + best + 1, s->ids + best + 2, tail * sizeof *s->ids);
        memmove(s->ranks + best + 1, s->ranks + best + 2, tail * sizeof *s->ranks);
        memmove(s->merged + best + 1, s->merged + best + 2, tail * sizeof *s->merged);
        count--;
        if (best > 0) rank_set(bpe, s, best - 1);
        if (best + 1 < count) rank_set(bpe, s, best);
    }
    return count;
}

static bool entry_before(const HeapEntry *a, const HeapEntry *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(BpeScratch *s, HeapEntry entry)
{
    s->heap = array_room(s->heap, s->heap_len + 1, &s->heap_capacity, sizeof *s->heap);
    size_t i = s->heap_len++;
    for (; i > 0 && entry_before(&entry, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = entry;
}

static HeapEntry heap_pop(BpeScratch *s)
{
    HeapEntry top = s->heap[0], last = s->heap[--s->heap_len];
    size_t    i = 0, child;
    while ((child = 2 * i + 1) < s->heap_len) {
        if (child + 1 < s->heap_len && entry_before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!entry_before(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static void pair_push(const Bpe *bpe, BpeScratch *s, int64_t at)
{
    if (at < 0 || s->next[at] < 0) return;
    int32_t          left = s->ids[at], right = s->ids[s->next[at]];
    const MergeSlot *merge = bpe_merge_find(bpe, left, right);
    if (merge) heap_push(s, (HeapEntry){merge->rank, (uint32_t)at, left, right, merge->id});
}

static size_t merge_long(const Bpe *bpe, BpeScratch *s, size_t count)
{
    s->heap_len = 0;
    for (size_t i = 0; i < count; i++) {
        s->previous[i] = (int64_t)i - 1;
        s->next[i] = i + 1 < count ? (int64_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < count; i++) pair_push(bpe, s, (int64_t)i);
    while (s->heap_len > 0) {
        HeapEntry top = heap_pop(s);
        int64_t   at = top.at, right = s->next[at];
        if (s->ids[at] != top.left || right < 0 || s->ids[right] != top.right) continue;
        s->ids[at] = top.id;
        s->ids[right] = -1;
        s->next[at] = s->next[right];
        if (s->next[at] >= 0) s->previous[s->next[at]] = at;
        pair_push(bpe, s, s->previous[at]);
        pair_push(bpe, s, at);
    }
    size_t kept = 0;
    for (int64_t i = 0; i >= 0; i = s->next[i]) s->ids[kept++] = s->ids[i];
    return kept;
}

/* Splits a word into characters' symbols. Characters that aren't in the vocabulary become the tokens of their bytes, or the unknown
 * token. */
static size_t symbols_of_chars(const Bpe *bpe, BpeScratch *s, const char *word, size_t len)
{
    StrBuf affixed = {0};
    size_t count = 0, size;
    bool   unknown = false; /* an unknown token isn't written yet: following unknown tokens may fuse with it */
    for (size_t at = 0; at < len; at += size) {
        utf8_decode(word + at, &size);
        Str  text = {word + at, size};
        bool prefix = at > 0 && bpe->continuing_prefix.len, suffix = at + size == len && bpe->word_suffix.len;
        if (prefix || suffix) {
            strbuf_clear(&affixed);
            if (prefix) strbuf_append(&affixed, bpe->continuing_prefix.data, bpe->continuing_prefix.len);
            strbuf_append(&affixed, word + at, size);
            if (suffix) strbuf_append(&affixed, bpe->word_suffix.data, bpe->word_suffix.len);
            text = strbuf_str(&affixed);
            symbols_reserve(s, count + text.len + (len - at) + 1);
        }
        int32_t id = bpe_find(bpe, text.data, text.len);
        if (id >= 0) {
            if (unknown) s->ids[count++] = bpe->unk_id;
            unknown = false;
            s->ids[count++] = id;
            continue;
        }
        bool bytes = bpe->byte_fallback;
        for (size_t i = 0; i < text.len && bytes; i++) bytes = bpe->fallback_ids[(uint8_t)text.data[i]] >= 0;
        if (bytes) {
            for (size_t i = 0; i < text.len; i++) s->ids[count++] = bpe->fallback_ids[(uint8_t)text.data[i]];
        } else if (bpe->unk_id >= 0) {
            if (unknown && !bpe->fuse_unk) s->ids[count++] = bpe->unk_id;
            unknown = true;
        }
    }
    if (unknown) s->ids[count++] = bpe->unk_id;
    strbuf_deinit(&affixed);
    return count;
}

/* Stores the ids of the word in s->ids and returns their count. */
static size_t word_ids(const Bpe *bpe, BpeScratch *s, const char *word, size_t len, bool raw_bytes)
{
    symbols_reserve(s, len + 1);
    if (bpe->ignore_merges) {
        int32_t id = raw_bytes ? bpe_find_bytes(bpe, word, len) : bpe_find(bpe, word, len);
        if (id >= 0) {
            s->ids[0] = id;
            return 1;
        }
    }
    size_t count = len;
    if (raw_bytes) {
        for (size_t i = 0; i < len; i++) s->ids[i] = bpe->byte_ids[(uint8_t)word[i]];
    } else {
        count = symbols_of_chars(bpe, s, word, len);
    }
    if (count < 2) return count;
    return count <= SHORT_WORD ? merge_short(bpe, s, count) : merge_long(bpe, s, count);
}

/* Makes room for `count` ids, and always for the ids of a whole cache line, because hits copy all of them. */
static void ids_reserve(TokenIds *out, size_t count)
{
    out->data = array_room(out->data, out->len + count + CACHE_WORD_IDS, &out->capacity, sizeof *out->data);
}

static void ids_append(TokenIds *out, const int32_t *ids, size_t count)
{
    ids_reserve(out, count);
    memcpy(out->data + out->len, ids, count * sizeof *ids);
    out->len += count;
}

static uint64_t hash_line(__m256i line)
{
    uint64_t    part[4];
    __uint128_t a, b;
    _mm256_storeu_si256((__m256i *)part, line);
    a = (__uint128_t)(part[0] ^ 0x9E3779B97F4A7C15u) * (part[1] ^ 0xD6E8FEB86659FD93u);
    b = (__uint128_t)(part[2] ^ 0xA0761D6478BD642Fu) * (part[3] ^ 0xE7037ED1A0B428DBu);
    return (uint64_t)a ^ (uint64_t)(a >> 64) ^ (uint64_t)b ^ (uint64_t)(b >> 64);
}

/* Returns the key of a cache line: the word's bytes, zeros, and the length in the last byte. */
static __m256i line_of_word(const char *word, size_t len, size_t readable)
{
    static const uint8_t keep[64] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
                                     255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    __m256i              line;
    if (readable >= 32) {
        line = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)word), _mm256_loadu_si256((const __m256i *)(keep + 32 - len)));
    } else {
        char copy[32] = {0};
        memcpy(copy, word, len);
        line = _mm256_loadu_si256((const __m256i *)copy);
    }
    return _mm256_insert_epi8(line, (char)len, 31);
}

static bool line_holds(const CacheLine *line, __m256i word)
{
    __m256i equal = _mm256_cmpeq_epi8(_mm256_load_si256((const __m256i *)line->word), word);
    return _mm256_movemask_epi8(equal) == -1;
}

/* Inserts a line as the first of its set. The previous first line becomes the second; the previous second line is dropped. */
static CacheLine *line_insert(CacheLine *cache, uint64_t mask, __m256i word)
{
    CacheLine *set = &cache[(hash_line(word) & mask) * 2];
    set[1] = set[0];
    _mm256_store_si256((__m256i *)set[0].word, word);
    return set;
}

/* Doubles the number of sets. Starting small saves memory and time when there are few words. */
static void cache_grow(BpeScratch *s)
{
    uint64_t   num_sets = (s->set_mask + 1) * 2;
    CacheLine *cache = cache_create(num_sets);
    for (uint64_t i = s->set_mask * 2 + 2; i-- > 0;) { /* backwards, so that the second line of a set, the older one, is inserted first */
        CacheLine *old = &s->cache[i], *line;
        if (old->len == 0) continue;
        line = line_insert(cache, num_sets - 1, _mm256_load_si256((const __m256i *)old->word));
        memcpy(line->ids, old->ids, sizeof line->ids);
        line->count = old->count;
    }
    free(s->cache);
    s->cache = cache;
    s->set_mask = num_sets - 1;
    s->num_kept = 0;
}

void bpe_encode_word(const Bpe *bpe, BpeScratch *s, const char *word, size_t len, size_t readable, bool raw_bytes, TokenIds *out)
{
    if (len > CACHE_WORD_BYTES) {
        size_t count = word_ids(bpe, s, word, len, raw_bytes);
        ids_append(out, s->ids, count);
        return;
    }
    __m256i    line = line_of_word(word, len, readable);
    CacheLine *set = &s->cache[(hash_line(line) & s->set_mask) * 2];
    CacheLine *hit = line_holds(&set[0], line) ? &set[0] : line_holds(&set[1], line) ? &set[1] : NULL;
    if (hit) {
        ids_reserve(out, 0);
        memcpy(out->data + out->len, hit->ids, sizeof hit->ids);
        out->len += (size_t)hit->count;
        return;
    }
    size_t count = word_ids(bpe, s, word, len, raw_bytes);
    ids_append(out, s->ids, count);
    if (count > CACHE_WORD_IDS) return;
    if (s->num_kept++ > s->set_mask && s->set_mask + 1 < CACHE_MOST_SETS) cache_grow(s);
    set = line_insert(s->cache, s->set_mask, line);
    set[0].count = (int32_t)count;
    memcpy(set[0].ids, s->ids, count * sizeof *s->ids);
}

/* Encodes text[start, end). Long stretches are cut further, between neighbouring characters that no token contains side by side. */
static void encode_stretch(const Bpe *bpe, BpeScratch *s, const char *text, size_t start, size_t end, size_t len, TokenIds *out)
{
    if (end - start > CACHE_WORD_BYTES && bpe->can_cut) {
        size_t   size;
        uint32_t left = utf8_decode(text + start, &size), right;
        for (size_t at = start + size; at < end; at += size) {
            right = utf8_decode(text + at, &size);
            if (!bpe_is_joint(bpe, left, right)) {
                bpe_encode_word(bpe, s, text + start, at - start, len - start, false, out);
                start = at;
            }
            left = right;
        }
    }
    bpe_encode_word(bpe, s, text + start, end - start, len - start, false, out);
}

/* Whether a word can begin at text[at] (at > start). Only finds words that begin with U+2581, or with an ASCII character after another
 * ASCII character. */
static bool cuts_before(const Bpe *bpe, const char *text, size_t at, size_t len)
{
    uint8_t before = (uint8_t)text[at - 1], here = (uint8_t)text[at];
    if (here < 128) return before < 128 && !bpe->ascii_joint[before][here];
    if (here != 0xE2 || len - at < 3 || text[at + 1] != '\x96' || text[at + 2] != '\x81') return false;
    if (before < 128) return !bpe->space_joint[before];
    if (at >= 3 && memcmp(text + at - 3, "\xE2\x96\x81", 3) == 0) return false;
    return !bpe->space_joint_other;
}

void bpe_encode_text(const Bpe *bpe, BpeScratch *s, const char *text, size_t len, TokenIds *out)
{
    size_t start = 0;
    for (size_t at = 1; bpe->can_cut && at < len; at++) {
        if (!cuts_before(bpe, text, at, len)) continue;
        encode_stretch(bpe, s, text, start, at, len, out);
        start = at;
    }
    if (len > start) encode_stretch(bpe, s, text, start, len, len, out);
}
