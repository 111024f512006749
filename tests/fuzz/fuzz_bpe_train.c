/* A vocabulary can be learnt from any text, and its tokenizer gives the text back. */
#include "fuzz_text.h"
#include "text/bpe_train.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A text that was decoded once is unchanged by encoding and decoding it again. */
static void check_round_trip(const Tokenizer *tokenizer, Str text)
{
    StrBuf once = {0}, twice = {0};
    text_encode(tokenizer, text, (EncodeOptions){.plain_special = true}, &once);
    text_encode(tokenizer, (Str){strbuf_cstr(&once), once.len}, (EncodeOptions){.plain_special = true}, &twice);
    if (once.len != twice.len || (once.len && memcmp(once.data, twice.data, once.len) != 0)) abort();
    strbuf_deinit(&once);
    strbuf_deinit(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Str                      text = {size ? (const char *)data : "", size};
    static const char *const special[] = {"<|end|>", "<|end|>"};
    BpeTrainOptions          options = {.vocab_size = 258 + (int32_t)(text.len % 60),
                                        .min_frequency = (int64_t)(text.len % 3),
                                        .special_tokens = special,
                                        .num_special_tokens = 2};
    BpeTrainer              *trainer;
    Tokenizer               *tokenizer;
    StrBuf                   json = {0};
    if (bpe_trainer_create(&options, &trainer) != OK || bpe_trainer_add(trainer, &text, 1) != OK || bpe_trainer_train(trainer) != OK)
        abort();
    bpe_trainer_write(trainer, &json);
    if (tokenizer_parse("trained", json.data, json.len, &tokenizer) != OK) abort();
    check_round_trip(tokenizer, text);
    tokenizer_destroy(tokenizer);
    bpe_trainer_destroy(trainer);
    strbuf_deinit(&json);
    return 0;
}
