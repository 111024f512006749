/* See chat.h. */
#include "infer/chat.h"

#include "base/str.h"

#include <string.h>

JsonValue chat_with_value(Arena *arena, const JsonValue *object, const char *key, JsonValue value)
{
    JsonValue copy = *object;
    copy.members = arena_array(arena, JsonMember, object->count);
    memcpy(copy.members, object->members, object->count * sizeof *copy.members);
    for (uint32_t i = 0; i < copy.count; i++)
        if (str_equal(copy.members[i].key, key)) copy.members[i].value = value;
    return copy;
}

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

/* ---- tool calls ---- */

static JsonValue parsed(Arena *arena, const JsonValue *text)
{
    JsonValue value = {.type = JSON_OBJECT};
    if (!text->string.len || json_parse(arena, "arguments", text->string.data, text->string.len, &value) == OK) return value;
    status_clear();
    return *text;
}

static JsonValue text_of(Arena *arena, const JsonValue *arguments)
{
    StrBuf text = {0};
    json_write(&text, arguments, -1);
    JsonValue value = {.type = JSON_STRING, .string = {arena_strndup(arena, strbuf_cstr(&text), text.len), text.len}};
    strbuf_deinit(&text);
    return value;
}

/* The call with its arguments as JSON text (as_text), or parsed. Sets *changed if that gives them another type. */
static JsonValue call_with(Arena *arena, const JsonValue *call, bool as_text, bool *changed)
{
    const JsonValue *function = json_get(call, "function"), *arguments = function ? json_get(function, "arguments") : NULL;
    if (!arguments || as_text == (arguments->type == JSON_STRING)) return *call;
    JsonValue value = as_text ? text_of(arena, arguments) : parsed(arena, arguments);
    *changed |= value.type != arguments->type;
    return chat_with_value(arena, call, "function", chat_with_value(arena, function, "arguments", value));
}

static JsonValue message_with(Arena *arena, const JsonValue *message, bool as_text, bool *changed)
{
    const JsonValue *calls = message->type == JSON_OBJECT ? json_get(message, "tool_calls") : NULL;
    if (!calls || calls->type != JSON_ARRAY) return *message;
    JsonValue list = *calls;
    list.items = arena_array(arena, JsonValue, calls->count);
    for (uint32_t i = 0; i < calls->count; i++) list.items[i] = call_with(arena, &calls->items[i], as_text, changed);
    return chat_with_value(arena, message, "tool_calls", list);
}

/* The messages, the arguments of their calls as JSON text (as_text), or parsed. *changed: some arguments got another type. */
static JsonValue messages_with(Arena *arena, const JsonValue *messages, bool as_text, bool *changed)
{
    JsonValue list = *messages;
    *changed = false;
    list.items = arena_array(arena, JsonValue, messages->count);
    for (uint32_t i = 0; i < messages->count; i++) list.items[i] = message_with(arena, &messages->items[i], as_text, changed);
    return list;
}

Status chat_render(const Template *tmpl, const TemplateInput *input, TemplateOutput *out)
{
    Arena         arena = {0};
    bool          were_texts, were_objects;
    JsonValue     objects = messages_with(&arena, input->messages, false, &were_texts);
    JsonValue     texts = messages_with(&arena, input->messages, true, &were_objects);
    TemplateInput given = *input;
    given.messages = &objects;
    Status status = template_render(tmpl, &given, out);
    if (status != OK && (were_texts || were_objects)) {
        char *message = arena_strdup(&arena, status_message());
        given.messages = &texts;
        if (template_render(tmpl, &given, out) == OK)
            status = OK;
        else
            status = status_fail(status, "%s", message);
    }
    arena_deinit(&arena);
    return status;
}

Status chat_encode_messages(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, const ChatMessages *chat,
                            TokenIds *out)
{
    TemplateInput  input = {.messages = chat->messages, .tools = chat->tools, .variables = chat->variables, .add_generation_prompt = true};
    TemplateOutput text = {0};
    TokenIds       ids = {0};
    int32_t        bos = tokenizer_bos_id(tokenizer);
    Status         status = chat_render(tmpl, &input, &text);
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
