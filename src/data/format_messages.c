/* Messages in whatever spelling, as templates expect them: role and content, tool calls with their arguments as objects. */
#include "data/format_internal.h"

#include <string.h>

JsonValue *message_push(MessageList *list, const char *role, Str content)
{
    if (list->count == list->capacity) {
        uint32_t   capacity = list->capacity ? list->capacity * 2 : 8;
        JsonValue *items = arena_array(list->arena, JsonValue, capacity);
        int8_t    *train = arena_array(list->arena, int8_t, capacity);
        if (list->count) {
            memcpy(items, list->items, sizeof *items * list->count);
            memcpy(train, list->train, list->count);
        }
        list->items = items;
        list->train = train;
        list->capacity = capacity;
    }
    list->train[list->count] = -1;
    JsonValue *message = &list->items[list->count++];
    *message = (JsonValue){ .type = JSON_OBJECT, .count = 2, .members = arena_array(list->arena, JsonMember, 2) };
    message->members[0] = (JsonMember){ { "role", 4 }, { .type = JSON_STRING, .string = str_of(role) } };
    message->members[1] = (JsonMember){ { "content", 7 }, { .type = JSON_STRING, .string = content } };
    return message;
}

void message_set(Arena *arena, JsonValue *message, const char *key, const JsonValue *value)
{
    for (uint32_t i = 0; i < message->count; i++)
        if (str_equal(message->members[i].key, key)) {
            message->members[i].value = *value;
            return;
        }
    JsonMember *members = arena_array(arena, JsonMember, message->count + 1);
    if (message->count) memcpy(members, message->members, sizeof *members * message->count);
    members[message->count].key = str_of(key);
    members[message->count].value = *value;
    message->members = members;
    message->count++;
}

Status message_list_finish(MessageList *list, Sample *out)
{
    JsonValue *messages = arena_new(list->arena, JsonValue);
    *messages = (JsonValue){ .type = JSON_ARRAY, .count = list->count, .items = list->items };
    out->messages = messages;
    out->train = list->train;
    return OK;
}

static const char *usual_role(const char *role)
{
    static const char *const spellings[][2] = {
        { "human", "user" }, { "Human", "user" }, { "USER", "user" }, { "gpt", "assistant" }, { "bot", "assistant" },
        { "model", "assistant" }, { "chatgpt", "assistant" }, { "bing", "assistant" }, { "ASSISTANT", "assistant" },
        { "function_call", "assistant" }, { "observation", "tool" }, { "function_response", "tool" },
    };
    if (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0) return role;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++)
        if (strcmp(role, spellings[i][0]) == 0) return spellings[i][1];
    return role;
}

/* Text that is JSON becomes the value; other text stays. */
static const JsonValue *parsed(Arena *arena, const JsonValue *value)
{
    JsonValue *out = arena_new(arena, JsonValue);
    if (value->type != JSON_STRING) return value;
    if (json_parse(arena, "", value->string.data, value->string.len, out) == OK) return out;
    status_clear();
    return value;
}

/* {"name", "arguments"} or a list of them, as {"type": "function", "function": {...}}. */
static Status set_calls(Arena *arena, JsonValue *message, const JsonValue *calls)
{
    uint32_t         count = calls->type == JSON_ARRAY ? calls->count : 1;
    const JsonValue *from = calls->type == JSON_ARRAY ? calls->items : calls;
    JsonValue        list = { .type = JSON_ARRAY, .count = count, .items = arena_array(arena, JsonValue, count) };
    for (uint32_t i = 0; i < count; i++) {
        FAIL_IF(from[i].type != JSON_OBJECT, ERR_INVALID, "tool call %u is %s, want an object", i + 1, json_type_name(from[i].type));
        const JsonValue *inner = json_get(&from[i], "function");
        JsonValue        function = inner ? *inner : from[i];
        FAIL_IF(function.type != JSON_OBJECT, ERR_INVALID, "tool call %u has no function", i + 1);
        const JsonValue *arguments = json_get(&function, "arguments");
        if (arguments && arguments->type == JSON_STRING) {
            function.members = memcpy(arena_array(arena, JsonMember, function.count), function.members,
                                      sizeof(JsonMember) * function.count);
            message_set(arena, &function, "arguments", parsed(arena, arguments));
        }
        JsonValue kind = { .type = JSON_STRING, .string = str_of("function") };
        list.items[i] = (JsonValue){ .type = JSON_OBJECT };
        const JsonValue *id = json_get(&from[i], "id");
        if (id) message_set(arena, &list.items[i], "id", id);
        message_set(arena, &list.items[i], "type", &kind);
        message_set(arena, &list.items[i], "function", &function);
    }
    message_set(arena, message, "tool_calls", &list);
    return OK;
}

/* What a row says about training on a message: "train" (or "training", "weight"), "masked" the other way round. */
static int8_t train_flag(const JsonValue *message)
{
    static const Str names[] = { { "train", 5 }, { "training", 8 }, { "weight", 6 } };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const JsonValue *value = json_find(message, names[i]);
        if (value && value->type == JSON_BOOL) return value->boolean;
        if (value && value->type == JSON_INT) return value->integer != 0;
    }
    const JsonValue *masked = json_get(message, "masked");
    return masked && masked->type == JSON_BOOL ? !masked->boolean : -1;
}

static Status add_message(MessageList *list, const DatasetOptions *options, const JsonValue *from, uint32_t number)
{
    FAIL_IF(from->type != JSON_OBJECT, ERR_INVALID, "message %u is %s, want an object", number, json_type_name(from->type));
    bool             is_sharegpt = !options->role_property && json_get(from, "from");
    const char      *role_name = options->role_property ? options->role_property : is_sharegpt ? "from" : "role";
    const char      *content_name = options->content_property ? options->content_property : NULL, *role;
    const JsonValue *content = content_name ? json_get(from, content_name) : json_get(from, "content");
    if (!content && !content_name) content = json_get(from, "value");
    FAIL_IF(!json_get_str(from, role_name, &role), ERR_INVALID, "message %u has no \"%s\"", number, role_name);
    const JsonValue *calls = json_get(from, "tool_calls");
    bool             is_call = strcmp(role, "function_call") == 0;
    FAIL_IF(!content && (!calls || is_call), ERR_INVALID, "message %u has no \"%s\"", number, content_name ? content_name : is_sharegpt ? "value" : "content");
    JsonValue *message = message_push(list, usual_role(role), (Str){ "", 0 });
    if (content && content->type != JSON_NULL && !is_call) {
        FAIL_IF(content->type != JSON_STRING && content->type != JSON_ARRAY, ERR_INVALID, "message %u: content is %s, want a text",
                number, json_type_name(content->type));
        message_set(list->arena, message, "content", content);
    }
    if (is_call) {
        const JsonValue *call = parsed(list->arena, content);
        FAIL_IF(call->type != JSON_OBJECT && call->type != JSON_ARRAY, ERR_INVALID, "message %u: the function call isn't JSON", number);
        TRY(set_calls(list->arena, message, call));
    } else if (calls && calls->type != JSON_NULL && !(calls->type == JSON_ARRAY && calls->count == 0)) {
        TRY(set_calls(list->arena, message, calls));
    }
    static const Str kept[] = { { "name", 4 }, { "tool_call_id", 12 }, { "reasoning_content", 17 }, { "thinking", 8 } };
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        const JsonValue *value = json_find(from, kept[i]);
        if (value && value->type != JSON_NULL) message_set(list->arena, message, kept[i].data, value);
    }
    list->train[list->count - 1] = train_flag(from);
    return OK;
}

/* A list, or text that holds one; an empty one is none. */
static Status read_tools(Arena *arena, const JsonValue *row, const char *name, const JsonValue **out)
{
    const JsonValue *value = json_get(row, name);
    *out = NULL;
    if (!value || value->type == JSON_NULL || (value->type == JSON_STRING && value->string.len == 0)) return OK;
    const JsonValue *tools = parsed(arena, value);
    FAIL_IF(tools->type != JSON_ARRAY, ERR_INVALID, "field \"%s\" is %s, want a list of tools", name, json_type_name(tools->type));
    if (tools->count > 0) *out = tools;
    return OK;
}

Status format_messages(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row, Str system,
                       Sample *out)
{
    const JsonValue *from = json_get(row, format->messages_field);
    FAIL_IF(!from || from->type != JSON_ARRAY, ERR_INVALID, "field \"%s\" is %s, want a list of messages", format->messages_field,
            from ? json_type_name(from->type) : "missing");
    FAIL_IF(from->count == 0, ERR_INVALID, "field \"%s\" is an empty list", format->messages_field);
    MessageList list = { .arena = arena };
    const char *first_role = "";
    json_get_str(&from->items[0], options->role_property ? options->role_property : "role", &first_role);
    if (*first_role == 0) json_get_str(&from->items[0], "from", &first_role);
    if (system.len > 0 && strcmp(first_role, "system") != 0) message_push(&list, "system", system);
    for (uint32_t i = 0; i < from->count; i++) TRY(add_message(&list, options, &from->items[i], i + 1));
    TRY(read_tools(arena, row, format->tools_field, &out->tools));
    return message_list_finish(&list, out);
}
