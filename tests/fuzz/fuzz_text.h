/* Encodes and decodes in every way, checking the invariants of any tokenizer. */
#pragma once

#include "text/tokenizer.h"
#include "text/tokenizer_unicode.h"

#include <stdlib.h>
#include <string.h>

static void ids_decode(const Tokenizer *tokenizer, const TokenIds *ids, StrBuf *out)
{
    TokenStream stream = {0};
    StrBuf      streamed = {0};
    if (tokenizer_decode(tokenizer, ids->data, ids->len, false, out) == OK && utf8_valid_prefix(out->data, out->len) != out->len) abort();
    for (size_t i = 0; i < ids->len; i++) {
        size_t before = streamed.len;
        if (token_stream_push(tokenizer, &stream, ids->data[i], i % 2, &streamed) != OK) break;
        size_t more = streamed.len - before;
        if (more && utf8_valid_prefix(streamed.data + before, more) != more) abort();
    }
    token_stream_finish(&stream, &streamed);
    strbuf_deinit(&streamed);
}

/* Encodes and decodes; `text_out` gets the decoded text. */
static void text_encode(const Tokenizer *tokenizer, Str text, EncodeOptions options, StrBuf *text_out)
{
    TokenizerScratch *scratch = tokenizer_scratch_create(tokenizer);
    TokenIds          ids = {0};
    for (int again = 0; again < 2; again++) { /* the second time with a filled cache */
        size_t before = ids.len;
        if (tokenizer_encode(tokenizer, scratch, text.data, text.len, options, &ids) != OK) break;
        if (again && (ids.len != 2 * before || (before && memcmp(ids.data, ids.data + before, before * sizeof *ids.data) != 0))) abort();
        if (again) ids.len = before;
    }
    for (size_t i = 0; i < ids.len; i++)
        if (ids.data[i] < 0 || ids.data[i] >= tokenizer_vocab_size(tokenizer)) abort();
    ids_decode(tokenizer, &ids, text_out);
    token_ids_deinit(&ids);
    tokenizer_scratch_destroy(scratch);
}
