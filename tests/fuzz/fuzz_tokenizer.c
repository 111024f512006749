/* Input: a tokenizer.json, NUL, a text, NUL, a tokenizer_config.json that is its generation_config.json too. Loads,
 * encodes, decodes, streams; errors are fine, crashes and leaks are not.
 * With nothing before the NUL a vocabulary is learnt from the text instead, and every text must come back from it. */
#include "text/bpe_train.h"
#include "text/tokenizer.h"
#include "text/tokenizer_unicode.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ids_decode(const Tokenizer *tokenizer, const TokenIds *ids, StrBuf *out)
{
    TokenStream stream = { 0 };
    StrBuf      streamed = { 0 };
    if (tokenizer_decode(tokenizer, ids->data, ids->len, false, out) == OK &&
        utf8_valid_prefix(out->data, out->len) != out->len)
        abort();
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
    TokenIds          ids = { 0 };
    for (int again = 0; again < 2; again++) { /* the second time from the cache */
        size_t before = ids.len;
        if (tokenizer_encode(tokenizer, scratch, text.data, text.len, options, &ids) != OK) break;
        if (again &&
            (ids.len != 2 * before || (before && memcmp(ids.data, ids.data + before, before * sizeof *ids.data) != 0)))
            abort();
        if (again) ids.len = before;
    }
    for (size_t i = 0; i < ids.len; i++)
        if (ids.data[i] < 0 || ids.data[i] >= tokenizer_vocab_size(tokenizer)) abort();
    ids_decode(tokenizer, &ids, text_out);
    token_ids_deinit(&ids);
    tokenizer_scratch_destroy(scratch);
}

/* A text that was decoded once comes back whole. */
static void check_round_trip(const Tokenizer *tokenizer, Str text)
{
    StrBuf once = { 0 }, twice = { 0 };
    text_encode(tokenizer, text, (EncodeOptions){ .plain_special = true }, &once);
    text_encode(tokenizer, (Str){ strbuf_cstr(&once), once.len }, (EncodeOptions){ .plain_special = true }, &twice);
    if (once.len != twice.len || (once.len && memcmp(once.data, twice.data, once.len) != 0)) abort();
    strbuf_deinit(&once);
    strbuf_deinit(&twice);
}

static void train(Str text)
{
    static const char *const special[] = { "<|end|>", "<|end|>" };
    BpeTrainOptions options = { .vocab_size = 258 + (int32_t)(text.len % 60), .min_frequency = (int64_t)(text.len % 3),
                                .special_tokens = special, .num_special_tokens = 2 };
    BpeTrainer     *trainer;
    Tokenizer      *tokenizer;
    StrBuf          json = { 0 };
    if (bpe_trainer_create(&options, &trainer) != OK || bpe_trainer_add(trainer, &text, 1) != OK ||
        bpe_trainer_train(trainer) != OK)
        abort();
    bpe_trainer_write(trainer, &json);
    if (tokenizer_parse("trained", json.data, json.len, &tokenizer) != OK) abort();
    check_round_trip(tokenizer, text);
    tokenizer_destroy(tokenizer);
    bpe_trainer_destroy(trainer);
    strbuf_deinit(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t         len = nul ? (size_t)(nul - data) : size;
    Str            text = { nul ? (const char *)nul + 1 : "", nul ? size - len - 1 : 0 };
    Tokenizer     *tokenizer;
    StrBuf         out = { 0 };
    if (nul && len == 0) {
        train(text);
        return 0;
    }
    const char *config = text.len ? memchr(text.data, 0, text.len) : NULL;
    Str         config_text = { "", 0 };
    if (config) config_text = (Str){ config + 1, text.len - (size_t)(config - text.data) - 1 };
    if (config) text.len = (size_t)(config - text.data);
    if (tokenizer_parse("fuzz", (const char *)data, len, &tokenizer) != OK) return 0;
    if (tokenizer_configure(tokenizer, "fuzz", config_text, config_text) == OK && tokenizer_adds_bos(tokenizer) &&
        tokenizer_bos_id(tokenizer) < 0)
        abort();
    text_encode(tokenizer, text, (EncodeOptions){ .add_special = true }, &out);
    text_encode(tokenizer, text, (EncodeOptions){ .plain_special = true }, &out);
    tokenizer_destroy(tokenizer);
    strbuf_deinit(&out);
    return 0;
}
