/* See chat.h. */
#include "infer/chat.h"

Status chat_encode(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, Str question,
                   TokenIds *out)
{
    JsonMember     members[2] = { { { "role", 4 }, { .type = JSON_STRING, .string = { "user", 4 } } },
                                  { { "content", 7 }, { .type = JSON_STRING, .string = question } } };
    JsonValue      message = { .type = JSON_OBJECT, .count = 2, .members = members };
    JsonValue      messages = { .type = JSON_ARRAY, .count = 1, .items = &message };
    TemplateInput  input = { .messages = &messages, .add_generation_prompt = true };
    TemplateOutput text = { 0 };
    TokenIds       ids = { 0 };
    int32_t        bos = tokenizer_bos_id(tokenizer);
    Status         status = template_render(tmpl, &input, &text);
    if (status == OK)
        status =
            tokenizer_encode(tokenizer, scratch, strbuf_cstr(&text.text), text.text.len, (EncodeOptions){ 0 }, &ids);
    if (status == OK && tokenizer_adds_bos(tokenizer) && bos >= 0 && (ids.len == 0 || ids.data[0] != bos))
        token_ids_push(out, bos);
    for (size_t i = 0; status == OK && i < ids.len; i++) token_ids_push(out, ids.data[i]);
    token_ids_deinit(&ids);
    template_output_deinit(&text);
    return status;
}
