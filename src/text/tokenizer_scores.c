/* Merges in terms of SentencePiece, a program that joins any two neighbours that form a token, the pair with the highest score first. The
 * merges are equivalent to scores if two conditions hold. The merges of each token have consecutive ranks, and every split of a merged
 * token into two tokens is a merge. */
#include "text/tokenizer_internal.h"

#include "text/tokenizer_unicode.h"

#include <stdlib.h>

/* The merges that result in a token. */
typedef struct Made {
    uint32_t first, last; /* smallest and largest rank */
    uint32_t count;       /* number of merges; 0: none */
    int32_t  id;
} Made;

static int by_first(const void *a, const void *b)
{
    uint32_t x = ((const Made *)a)->first, y = ((const Made *)b)->first;
    return (x > y) - (x < y);
}

/* Fills made[id] for all tokens. */
static void collect(const Bpe *bpe, Made *made)
{
    for (int32_t id = 0; id < bpe->num_tokens; id++) made[id] = (Made){UINT32_MAX, 0, 0, id};
    for (uint64_t i = 0; i <= bpe->merge_mask; i++) {
        const MergeSlot *slot = &bpe->merges[i];
        if (slot->pair == UINT64_MAX) continue;
        Made *token = &made[slot->id];
        if (slot->rank < token->first) token->first = slot->rank;
        if (slot->rank > token->last) token->last = slot->rank;
        token->count++;
    }
}

/* Counts the ways to split a token into two tokens for which there is no merge. */
static size_t count_missing(const Bpe *bpe, Str token)
{
    size_t missing = 0, size;
    if (!token.len) return 0;
    utf8_decode(token.data, &size);
    for (size_t at = size; at < token.len; at += size) {
        int32_t left = bpe_find(bpe, token.data, at), right = bpe_find(bpe, token.data + at, token.len - at);
        if (left >= 0 && right >= 0) missing += bpe_merge_find(bpe, left, right) == NULL;
        utf8_decode(token.data + at, &size);
    }
    return missing;
}

size_t tokenizer_scores(const Tokenizer *t, float *out_scores)
{
    const Bpe *bpe = &t->bpe;
    size_t     different = 0;
    Made      *made = malloc_or_end(((size_t)bpe->num_tokens + 1) * sizeof *made);
    for (int32_t id = 0; id < t->num_ids; id++) out_scores[id] = 0;
    collect(bpe, made);
    for (int32_t id = 0; id < bpe->num_tokens; id++)
        if (made[id].count) different += count_missing(bpe, bpe->tokens[id]);
    qsort(made, (size_t)bpe->num_tokens, sizeof *made, by_first);
    for (int32_t i = 0; i < bpe->num_tokens && made[i].count; i++) {
        different += i > 0 && made[i].first < made[i - 1].last;
        out_scores[made[i].id] = -(float)(i + 1);
    }
    free(made);
    return different;
}
