/* Input: a tokenizer.json, NUL, a text, NUL, a tokenizer_config.json that also stands for the other files beside it. Loads, encodes,
 * decodes, streams; errors are fine, crashes and leaks are not. */
#include "fuzz_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t         len = nul ? (size_t)(nul - data) : size;
    Str            text = {nul ? (const char *)nul + 1 : "", nul ? size - len - 1 : 0};
    Tokenizer     *tokenizer;
    StrBuf         out = {0};
    const char    *config = text.len ? memchr(text.data, 0, text.len) : NULL;
    Str            config_text = {"", 0};
    if (config) config_text = (Str){config + 1, text.len - (size_t)(config - text.data) - 1};
    if (config) text.len = (size_t)(config - text.data);
    if (tokenizer_parse("fuzz", (const char *)data, len, &tokenizer) != OK) return 0;
    TokenizerTexts texts = {config_text, config_text, config_text, config_text};
    if (tokenizer_configure(tokenizer, "fuzz", &texts) == OK && tokenizer_adds_bos(tokenizer) && tokenizer_bos_id(tokenizer) < 0) abort();
    text_encode(tokenizer, text, (EncodeOptions){.add_special = true}, &out);
    text_encode(tokenizer, text, (EncodeOptions){.plain_special = true}, &out);
    tokenizer_destroy(tokenizer);
    strbuf_deinit(&out);
    return 0;
}
