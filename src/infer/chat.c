/* See chat.h. */
#include "infer/chat.h"

JsonValue chat_message(JsonMember members[2], const char *role, Str content)
{
    members[0] = (JsonMember){{"role", 4}, {.type = JSON_STRING, .string = str_of(role)}};
    members[1] = (JsonMember){{"content", 7}, {.type = JSON_STRING, .string = content}};
    return (JsonValue){.type = JSON_OBJECT, .count = 2, .members = members};
}

Status chat_template(const InferModel *infer, Template **out_template)
{
    FAIL_IF(!infer->tokenizer, ERR_NOT_FOUND, "%s has no tokenizer.json, which is needed to read text", infer->tokenizer_dir);
    TRY(template_load(infer->tokenizer_dir, NULL, false, out_template));
    FAIL_IF(!*out_template, ERR_NOT_FOUND, "%s has no chat template (chat_template.jinja), which lays out questions and messages",
            infer->tokenizer_dir);
    return OK;
}

Status chat_check(const JsonValue *value, ChatMessages *out)
{
    const JsonValue *messages = value->type == JSON_OBJECT ? json_get(value, "messages") : value;
    const JsonValue *tools = value->type == JSON_OBJECT ? json_get(value, "tools") : NULL;
    const char      *role;
    if (tools && tools->type == JSON_NULL) tools = NULL;
    FAIL_IF(!messages, ERR_INVALID, "the object has no field messages; expected a list of messages {\"role\", \"content\"}");
    FAIL_IF(messages->type != JSON_ARRAY, ERR_INVALID, "messages is %s; expected a list of messages {\"role\", \"content\"}",
            json_type_name(messages->type));
    FAIL_IF(!messages->count, ERR_INVALID, "messages is an empty list; expected at least one message {\"role\", \"content\"}");
    for (uint32_t i = 0; i < messages->count; i++)
        FAIL_IF(!json_get_str(&messages->items[i], "role", &role), ERR_INVALID,
                "messages[%u] has no role; expected an object {\"role\", \"content\"}", i);
    FAIL_IF(tools && tools->type != JSON_ARRAY, ERR_INVALID, "tools is %s; expected a list of tools", json_type_name(tools->type));
    *out = (ChatMessages){.messages = messages, .tools = tools};
    return OK;
}

Status chat_encode_messages(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, const ChatMessages *chat,
                            TokenIds *out)
{
    TemplateInput  input = {.messages = chat->messages, .tools = chat->tools, .variables = chat->variables, .add_generation_prompt = true};
    TemplateOutput text = {0};
    TokenIds       ids = {0};
    int32_t        bos = tokenizer_bos_id(tokenizer);
    Status         status = template_render(tmpl, &input, &text);
    if (status == OK && chat->opening.len) strbuf_append(&text.text, chat->opening.data, chat->opening.len);
    if (status == OK) status = tokenizer_encode(tokenizer, scratch, strbuf_cstr(&text.text), text.text.len, (EncodeOptions){0}, &ids);
    if (status == OK && tokenizer_adds_bos(tokenizer) && bos >= 0 && (ids.len == 0 || ids.data[0] != bos)) token_ids_push(out, bos);
    for (size_t i = 0; status == OK && i < ids.len; i++) token_ids_push(out, ids.data[i]);
    token_ids_deinit(&ids);
    template_output_deinit(&text);
    return status;
}

Status chat_encode(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, const ChatPrompt *prompt, TokenIds *out)
{
    JsonMember   members[2][2];
    JsonValue    items[2];
    JsonValue    messages = {.type = JSON_ARRAY, .items = items};
    ChatMessages chat = {.messages = &messages, .variables = prompt->variables};
    if (prompt->system) items[messages.count++] = chat_message(members[0], "system", str_of(prompt->system));
    items[messages.count++] = chat_message(members[1], "user", prompt->question);
    return chat_encode_messages(tmpl, tokenizer, scratch, &chat, out);
}
