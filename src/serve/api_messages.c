/* See api_messages.h. */
#include "serve/api_messages.h"

#include <string.h>

/* A copy of the object with another value of a field that it has. */
static JsonValue with_value(Arena *arena, const JsonValue *object, const char *key, JsonValue value)
{
    JsonValue copy = *object;
    copy.members = arena_array(arena, JsonMember, object->count);
    memcpy(copy.members, object->members, object->count * sizeof *copy.members);
    for (uint32_t i = 0; i < copy.count; i++)
        if (str_equal(copy.members[i].key, key)) copy.members[i].value = value;
    return copy;
}

static Status join_parts(Arena *arena, const JsonValue *parts, uint32_t number, JsonValue *out)
{
    StrBuf text = {0};
    Status status = OK;
    for (uint32_t i = 0; i < parts->count && status == OK; i++) {
        const JsonValue *part = &parts->items[i], *value = json_get(part, "text");
        const char      *type = "";
        bool             has_type = json_get_str(part, "type", &type);
        if (has_type && strcmp(type, "text") == 0 && value && value->type == JSON_STRING)
            strbuf_append(&text, value->string.data, value->string.len);
        else
            status =
                status_fail(ERR_UNSUPPORTED, "message %u: part %u of its content is of type %.40s; expected {\"type\": \"text\", \"text\"}",
                            number, i, has_type ? type : "none");
    }
    *out = (JsonValue){.type = JSON_STRING, .string = {arena_strndup(arena, strbuf_cstr(&text), text.len), text.len}};
    strbuf_deinit(&text);
    return status;
}

static Status read_call(Arena *arena, const JsonValue *call, uint32_t number, JsonValue *out)
{
    const JsonValue *function = json_get(call, "function"), *arguments = function ? json_get(function, "arguments") : NULL;
    JsonValue        object;
    FAIL_IF(!function, ERR_INVALID, "message %u: a tool call has no function; expected {\"type\", \"function\": {\"name\", \"arguments\"}}",
            number);
    *out = *call;
    if (!arguments || arguments->type != JSON_STRING) return OK;
    Status status = json_parse(arena, "its arguments", arguments->string.data, arguments->string.len, &object);
    if (status != OK) return status_prefix(status, "message %u: a tool call", number);
    *out = with_value(arena, call, "function", with_value(arena, function, "arguments", object));
    return OK;
}

static Status read_calls(Arena *arena, const JsonValue *calls, uint32_t number, JsonValue *out)
{
    FAIL_IF(calls->type != JSON_ARRAY, ERR_INVALID, "message %u: tool_calls is %s; expected a list", number, json_type_name(calls->type));
    *out = *calls;
    out->items = arena_array(arena, JsonValue, calls->count + 1);
    for (uint32_t i = 0; i < calls->count; i++) TRY(read_call(arena, &calls->items[i], number, &out->items[i]));
    return OK;
}

static Status read_message(Arena *arena, const JsonValue *message, uint32_t number, JsonValue *out)
{
    const char      *role;
    const JsonValue *content = json_get(message, "content"), *calls = json_get(message, "tool_calls");
    JsonValue        value;
    FAIL_IF(!json_get_str(message, "role", &role), ERR_INVALID, "message %u has no role; expected {\"role\", \"content\"}", number);
    bool has_calls = calls && calls->type != JSON_NULL, is_empty = !content || content->type == JSON_NULL;
    FAIL_IF(is_empty && !has_calls, ERR_INVALID, "message %u has no content; expected a text", number);
    FAIL_IF(!is_empty && content->type != JSON_STRING && content->type != JSON_ARRAY, ERR_INVALID,
            "message %u: content is %s; expected a text, or parts of one", number, json_type_name(content->type));
    *out = *message;
    if (!is_empty && content->type == JSON_ARRAY) {
        TRY(join_parts(arena, content, number, &value));
        *out = with_value(arena, out, "content", value);
    }
    if (!has_calls) return OK;
    TRY(read_calls(arena, calls, number, &value));
    *out = with_value(arena, out, "tool_calls", value);
    return OK;
}

Status api_messages(Arena *arena, const JsonValue *messages, const JsonValue **out)
{
    FAIL_IF(messages->type != JSON_ARRAY, ERR_INVALID, "it is %s; expected a list of messages {\"role\", \"content\"}",
            json_type_name(messages->type));
    FAIL_IF(!messages->count, ERR_INVALID, "it is an empty list; expected at least one message {\"role\", \"content\"}");
    JsonValue *list = arena_new(arena, JsonValue);
    *list = *messages;
    list->items = arena_array(arena, JsonValue, messages->count);
    for (uint32_t i = 0; i < messages->count; i++) TRY(read_message(arena, &messages->items[i], i, &list->items[i]));
    *out = list;
    return OK;
}
