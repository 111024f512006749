/* Encodes text: repairs UTF-8, splits at added tokens, normalizes, splits at normalized added tokens, cuts into words, merges. */
#include "text/tokenizer_internal.h"

#include "base/array.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

void token_ids_deinit(TokenIds *ids)
{
    free(ids->data);
    *ids = (TokenIds){0};
}

void token_ids_push(TokenIds *ids, int32_t id)
{
    ids->data = array_room(ids->data, ids->len + 1, &ids->capacity, sizeof *ids->data);
    ids->data[ids->len++] = id;
}

TokenizerScratch *tokenizer_scratch_create(const Tokenizer *tokenizer)
{
    TokenizerScratch *scratch = calloc_or_end(1, sizeof *scratch);
    (void)tokenizer;
    scratch->bpe = bpe_scratch_create();
    scratch->regex = regex_scratch_create();
    scratch->pre.regex = scratch->regex;
    return scratch;
}

void tokenizer_scratch_destroy(TokenizerScratch *scratch)
{
    if (!scratch) return;
    bpe_scratch_destroy(scratch->bpe);
    pre_scratch_deinit(&scratch->pre);
    regex_scratch_destroy(scratch->regex);
    strbuf_deinit(&scratch->repaired);
    strbuf_deinit(&scratch->normal[0]);
    strbuf_deinit(&scratch->normal[1]);
    free(scratch->splits[0].data);
    free(scratch->splits[1].data);
    free(scratch->anchors);
    free(scratch);
}

/* Encodes text that contains no added tokens. */
static Status encode_plain(const Tokenizer *t, TokenizerScratch *scratch, Str text, bool at_start, TokenIds *out)
{
    const Scanner *scanner = t->raw_bytes ? pretokenizer_scanner(t->pre) : NULL;
    if (scanner) {
        for (size_t at = 0; at < text.len;) {
            size_t end = scanner_next(scanner, &char_table, text.data, at, text.len);
            bpe_encode_word(&t->bpe, scratch->bpe, text.data + at, end - at, text.len - at, true, out);
            at = end;
        }
        return OK;
    }
    if (!t->has_pre) {
        bpe_encode_text(&t->bpe, scratch->bpe, text.data, text.len, out);
        return OK;
    }
    TRY(pretokenize(t->pre, &char_table, &scratch->pre, text, at_start, t->raw_bytes, &text));
    for (size_t i = 0; i < scratch->pre.pieces.len; i++) {
        Piece piece = scratch->pre.pieces.data[i];
        bpe_encode_word(&t->bpe, scratch->bpe, text.data + piece.start, piece.end - piece.start, text.len - piece.start, t->raw_bytes, out);
    }
    return OK;
}

/* Encodes text that contains no tokens of added[0]. */
static Status encode_segment(const Tokenizer *t, TokenizerScratch *scratch, Str text, bool at_start, bool plain_special, TokenIds *out)
{
    Str before = text;
    TRY(normalize(t->normalizer, &char_table, scratch->regex, scratch->normal, text, &text));
    scratch->kept_text &= text.data == before.data && text.len == before.len;
    if (t->added[1].num_tokens == 0) return text.len ? encode_plain(t, scratch, text, at_start, out) : OK;
    AddedSplits *splits = &scratch->splits[1];
    added_split(&t->added[1], &char_table, text, plain_special, splits);
    for (size_t i = 0; i < splits->len; i++) {
        AddedSplit split = splits->data[i];
        if (split.id >= 0) {
            token_ids_push(out, split.id);
        } else {
            Str part = {text.data + split.start, split.end - split.start};
            TRY(encode_plain(t, scratch, part, at_start && split.start == 0, out));
        }
    }
    return OK;
}

static void anchor_push(TokenizerScratch *scratch, size_t byte, size_t token, bool is_added)
{
    scratch->anchors = array_room(scratch->anchors, scratch->num_anchors + 1, &scratch->anchor_capacity, sizeof *scratch->anchors);
    scratch->anchors[scratch->num_anchors++] = (TokenAnchor){byte, token, is_added};
}

static Status encode_all(const Tokenizer *t, TokenizerScratch *scratch, Str text, EncodeOptions options, TokenIds *out)
{
    size_t first = out->len;
    for (size_t i = 0; options.add_special && i < t->prefix.len; i++) token_ids_push(out, t->prefix.data[i]);
    AddedSplits *splits = &scratch->splits[0];
    scratch->num_anchors = 0;
    added_split(&t->added[0], &char_table, text, options.plain_special, splits);
    for (size_t i = 0; i < splits->len; i++) {
        AddedSplit split = splits->data[i];
        anchor_push(scratch, split.start, out->len - first, split.id >= 0);
        if (split.id >= 0) {
            token_ids_push(out, split.id);
        } else {
            Str part = {text.data + split.start, split.end - split.start};
            TRY(encode_segment(t, scratch, part, split.start == 0, options.plain_special, out));
        }
    }
    anchor_push(scratch, text.len, out->len - first, false);
    for (size_t i = 0; options.add_special && i < t->suffix.len; i++) token_ids_push(out, t->suffix.data[i]);
    return OK;
}

Status tokenizer_encode(const Tokenizer *t, TokenizerScratch *scratch, const char *text, size_t len, EncodeOptions options, TokenIds *out)
{
    FAIL_IF(len > INT32_MAX, ERR_INVALID, "a text of %zu bytes is too long to encode at once: cut it below 2 GB", len);
    Str all = {text, len};
    scratch->kept_text = true;
    if (utf8_valid_prefix(text, len) < len) {
        strbuf_clear(&scratch->repaired);
        utf8_append_repaired(&scratch->repaired, text, len);
        all = strbuf_str(&scratch->repaired);
        scratch->kept_text = false;
    }
    TokenIds ids = *out; /* a copy on this thread's stack: *out may share a cache line with data of another thread */
    size_t   first = ids.len;
    Status   status = encode_all(t, scratch, all, options, &ids);
    if (all.data != text) { /* positions in the repaired text don't apply to the original one */
        scratch->num_anchors = 0;
        anchor_push(scratch, 0, 0, false);
        anchor_push(scratch, len, ids.len - first, false);
    }
    *out = ids;
    return status;
}

bool tokenizer_anchors(const Tokenizer *t, const TokenizerScratch *scratch, const TokenAnchor **out, size_t *out_count)
{
    const AddedSplits *splits = &scratch->splits[0];
    *out = scratch->anchors;
    *out_count = scratch->num_anchors;
    if (!scratch->kept_text || !t->raw_bytes || !pretokenizer_scanner(t->pre) || t->added[1].num_tokens > 0) return false;
    for (size_t i = 0; i < splits->len; i++) /* an added token with white space beside it covers more than its own bytes */
        if (splits->data[i].id >= 0 &&
            tokenizer_token_bytes(t, splits->data[i].id) != (int64_t)(splits->data[i].end - splits->data[i].start))
            return false;
    return true;
}
