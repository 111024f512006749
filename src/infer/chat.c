/* See chat.h. */
#include "infer/chat.h"

static JsonValue message_of(JsonMember members[2], const char *role, Str content)
{
    members[0] = (JsonMember){{"role", 4}, {.type = JSON_STRING, .string = str_of(role)}};
    members[1] = (JsonMember){{"content", 7}, {.type = JSON_STRING, .string = content}};
    return (JsonValue){.type = JSON_OBJECT, .count = 2, .members = members};
}

Status chat_encode(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, const ChatPrompt *prompt, TokenIds *out)
{
    JsonMember     members[2][2];
    JsonValue      items[2];
    JsonValue      messages = {.type = JSON_ARRAY, .items = items};
    TemplateInput  input = {.messages = &messages, .variables = prompt->variables, .add_generation_prompt = true};
    TemplateOutput text = {0};
    TokenIds       ids = {0};
    int32_t        bos = tokenizer_bos_id(tokenizer);
    if (prompt->system) items[messages.count++] = message_of(members[0], "system", str_of(prompt->system));
    items[messages.count++] = message_of(members[1], "user", prompt->question);
    Status status = template_render(tmpl, &input, &text);
    if (status == OK) status = tokenizer_encode(tokenizer, scratch, strbuf_cstr(&text.text), text.text.len, (EncodeOptions){0}, &ids);
    if (status == OK && tokenizer_adds_bos(tokenizer) && bos >= 0 && (ids.len == 0 || ids.data[0] != bos)) token_ids_push(out, bos);
    for (size_t i = 0; status == OK && i < ids.len; i++) token_ids_push(out, ids.data[i]);
    token_ids_deinit(&ids);
    template_output_deinit(&text);
    return status;
}
