/* Messages in whatever spelling, as templates expect them: role and content, tool calls with their arguments as objects. */
#include "data/format_internal.h"

#include <string.h>
#include <strings.h>

/* Place of one more, without a flag. */
static JsonValue *next_message(MessageList *list)
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
    return &list->items[list->count++];
}

JsonValue *message_push(MessageList *list, const char *role, Str content)
{
    JsonValue *message = next_message(list);
    *message = (JsonValue){.type = JSON_OBJECT, .count = 2, .members = arena_array(list->arena, JsonMember, 2)};
    message->members[0] = (JsonMember){{"role", 4}, {.type = JSON_STRING, .string = str_of(role)}};
    message->members[1] = (JsonMember){{"content", 7}, {.type = JSON_STRING, .string = content}};
    return message;
}

static void message_set(Arena *arena, JsonValue *message, const char *key, const JsonValue *value)
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
    *messages = (JsonValue){.type = JSON_ARRAY, .count = list->count, .items = list->items};
    out->messages = messages;
    out->train = list->train;
    return OK;
}

/* A role as templates know it, whatever its case; others stay. */
static const char *usual_role(const char *role, const TemplateTraits *tmpl)
{
    static const char *const spellings[][2] = {
        {"user", "user"},           {"human", "user"},
        {"assistant", "assistant"}, {"gpt", "assistant"},
        {"chatgpt", "assistant"},   {"bing", "assistant"},
        {"bot", "assistant"},       {"chatbot", "assistant"},
        {"model", "assistant"},     {"function_call", "assistant"},
        {"tool", "tool"},           {"function", "tool"},
        {"observation", "tool"},    {"function_response", "tool"},
        {"system", "system"},       {"developer", "developer"},
    };
    if (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0) return role;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        bool has_same_letter = ((role[0] ^ spellings[i][0][0]) & ~0x20) == 0; /* most rows are told by it */
        if (!has_same_letter || strcasecmp(role, spellings[i][0]) != 0) continue;
        role = spellings[i][1];
        break;
    }
    return strcmp(role, "developer") == 0 && !tmpl->prints_developer ? "system" : role;
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
static Status set_calls(Arena *arena, JsonValue *message, const JsonValue *calls, uint32_t number)
{
    uint32_t         count = calls->type == JSON_ARRAY ? calls->count : 1;
    const JsonValue *from = calls->type == JSON_ARRAY ? calls->items : calls;
    JsonValue        list = {.type = JSON_ARRAY, .count = count, .items = arena_array(arena, JsonValue, count)};
    for (uint32_t i = 0; i < count; i++) {
        FAIL_IF(from[i].type != JSON_OBJECT, ERR_INVALID, "message %u: tool call %u is %s, want an object", number, i + 1,
                json_type_name(from[i].type));
        const JsonValue *inner = json_get(&from[i], "function");
        JsonValue        function = inner ? *inner : from[i];
        FAIL_IF(function.type != JSON_OBJECT, ERR_INVALID, "message %u: tool call %u has no function", number, i + 1);
        const JsonValue *arguments = json_get(&function, "arguments");
        if (arguments && arguments->type == JSON_STRING) {
            function.members =
                memcpy(arena_array(arena, JsonMember, function.count), function.members, sizeof(JsonMember) * function.count);
            const JsonValue *value = arguments->string.len ? parsed(arena, arguments) : &(JsonValue){.type = JSON_OBJECT};
            FAIL_IF(value == arguments, ERR_INVALID, "message %u: the arguments of tool call %u aren't JSON: %.60s", number, i + 1,
                    arguments->string.data);
            message_set(arena, &function, "arguments", value);
        }
        JsonValue kind = {.type = JSON_STRING, .string = str_of("function")};
        list.items[i] = (JsonValue){.type = JSON_OBJECT};
        const JsonValue *id = json_get(&from[i], "id");
        if (id) message_set(arena, &list.items[i], "id", id);
        message_set(arena, &list.items[i], "type", &kind);
        message_set(arena, &list.items[i], "function", &function);
    }
    message_set(arena, message, "tool_calls", &list);
    return OK;
}

/* What a row says about training on a message: "train" (or "training", "weight"), "masked" the other way round. -1: nothing. */
static Status train_flag(const JsonValue *message, uint32_t number, int8_t *out)
{
    static const Str names[] = {{"train", 5}, {"training", 8}, {"weight", 6}, {"masked", 6}};
    *out = -1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const JsonValue *value = json_find(message, names[i]);
        if (!value || value->type == JSON_NULL) continue;
        bool is_yes = (value->type == JSON_BOOL && value->boolean) || (value->type == JSON_INT && value->integer == 1) ||
                      (value->type == JSON_DOUBLE && value->number == 1);
        bool is_no = (value->type == JSON_BOOL && !value->boolean) || (value->type == JSON_INT && value->integer == 0) ||
                     (value->type == JSON_DOUBLE && value->number == 0);
        FAIL_IF(!is_yes && !is_no, ERR_INVALID, "message %u: \"%s\" says whether it is trained, want true, false, 1 or 0", number,
                names[i].data);
        *out = i == 3 ? is_no : is_yes;
        return OK;
    }
    return OK;
}

/* A list of parts: as it is where the template takes such, else their texts one behind the other. */
static Status content_of_parts(Arena *arena, const JsonValue *parts, const TemplateTraits *tmpl, uint32_t number, JsonValue *out)
{
    StrBuf text = {0};
    bool   is_typed = true;
    for (uint32_t i = 0; i < parts->count; i++) {
        const JsonValue *part = &parts->items[i], *type = json_get(part, "type");
        const JsonValue *words = part->type == JSON_STRING ? part : json_get(part, "text");
        bool is_text = words && words->type == JSON_STRING && (!type || (type->type == JSON_STRING && str_equal(type->string, "text")));
        is_typed &= type != NULL;
        if (is_text) {
            strbuf_append(&text, words->string.data, words->string.len);
            continue;
        }
        strbuf_deinit(&text);
        FAIL(ERR_INVALID, "message %u: part %u of the content is no {\"type\": \"text\", \"text\": ...}; only texts can be trained on",
             number, i + 1);
    }
    *out = *parts;
    if (!tmpl->takes_parts || !is_typed)
        *out = (JsonValue){.type = JSON_STRING, .string = {arena_strndup(arena, strbuf_cstr(&text), text.len), text.len}};
    strbuf_deinit(&text);
    return OK;
}

static Status set_content(Arena *arena, JsonValue *message, const JsonValue *content, const TemplateTraits *tmpl, uint32_t number)
{
    JsonValue joined;
    FAIL_IF(content->type != JSON_STRING && content->type != JSON_ARRAY, ERR_INVALID, "message %u: content is %s, want a text", number,
            json_type_name(content->type));
    if (content->type == JSON_ARRAY) {
        TRY(content_of_parts(arena, content, tmpl, number, &joined));
        content = &joined;
    }
    message_set(arena, message, "content", content);
    return OK;
}

/* {role, content}, of a usual role: what most messages are, and nothing to be done. */
static bool is_ready(const DatasetOptions *options, const JsonValue *message)
{
    if (options->role_property || options->content_property || message->type != JSON_OBJECT || message->count != 2) return false;
    const JsonMember *role = &message->members[0], *content = &message->members[1];
    if (!str_equal(role->key, "role") || !str_equal(content->key, "content")) return false;
    if (role->value.type != JSON_STRING || content->value.type != JSON_STRING) return false;
    Str name = role->value.string;
    return str_equal(name, "user") || str_equal(name, "assistant") || str_equal(name, "system");
}

const char *const reasoning_keys[NUM_REASONING_KEYS] = {"reasoning_content", "reasoning", "thinking"};

/* An answer's thinking, under the template's name for it. */
static void set_reasoning(Arena *arena, JsonValue *message, const JsonValue *from, const TemplateTraits *tmpl)
{
    const char      *key = NULL;
    const JsonValue *found = NULL;
    for (size_t i = 0; i < NUM_REASONING_KEYS; i++) {
        const JsonValue *value = json_get(from, reasoning_keys[i]);
        bool             is_better = !found || (found->type == JSON_STRING && found->string.len == 0);
        if (!value || value->type == JSON_NULL || !is_better) continue;
        found = value;
        key = reasoning_keys[i];
    }
    if (found) message_set(arena, message, tmpl->reasoning_key ? tmpl->reasoning_key : key, found);
}

static Status add_message(MessageList *list, const DatasetOptions *options, const TemplateTraits *tmpl, const JsonValue *from,
                          uint32_t number)
{
    if (is_ready(options, from)) {
        *next_message(list) = *from;
        return OK;
    }
    FAIL_IF(from->type != JSON_OBJECT, ERR_INVALID, "message %u is %s, want an object", number, json_type_name(from->type));
    bool             is_sharegpt = !options->role_property && json_get(from, "from");
    const char      *role_name = options->role_property ? options->role_property : is_sharegpt ? "from" : "role";
    const char      *content_name = options->content_property ? options->content_property : NULL, *role;
    const JsonValue *content = content_name ? json_get(from, content_name) : json_get(from, "content");
    if (!content && !content_name) content = json_get(from, "value");
    FAIL_IF(!json_get_str(from, role_name, &role), ERR_INVALID, "message %u has no \"%s\"", number, role_name);
    const JsonValue *calls = json_get(from, "tool_calls");
    if (!calls || calls->type == JSON_NULL) calls = json_get(from, "function_call"); /* OpenAI's old form */
    bool is_call = strcasecmp(role, "function_call") == 0;
    FAIL_IF(!content && (!calls || is_call), ERR_INVALID, "message %u has no \"%s\"", number,
            content_name  ? content_name
            : is_sharegpt ? "value"
                          : "content");
    JsonValue *message = message_push(list, usual_role(role, tmpl), (Str){"", 0});
    if (content && content->type != JSON_NULL && !is_call) TRY(set_content(list->arena, message, content, tmpl, number));
    if (is_call) {
        const JsonValue *call = parsed(list->arena, content);
        FAIL_IF(call->type != JSON_OBJECT && call->type != JSON_ARRAY, ERR_INVALID, "message %u: the function call isn't JSON", number);
        TRY(set_calls(list->arena, message, call, number));
    } else if (calls && calls->type != JSON_NULL && !(calls->type == JSON_ARRAY && calls->count == 0)) {
        TRY(set_calls(list->arena, message, calls, number));
    }
    static const Str kept[] = {{"name", 4}, {"tool_call_id", 12}};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        const JsonValue *value = json_find(from, kept[i]);
        if (value && value->type != JSON_NULL) message_set(list->arena, message, kept[i].data, value);
    }
    set_reasoning(list->arena, message, from, tmpl);
    return train_flag(from, number, &list->train[list->count - 1]);
}

/* Bare functions, as ShareGPT's tools and OpenAI's old functions are, get {"type": "function", "function": ...} around them. */
static const JsonValue *wrapped_tools(Arena *arena, const JsonValue *from)
{
    JsonValue *tools = arena_new(arena, JsonValue), kind = {.type = JSON_STRING, .string = str_of("function")};
    *tools = (JsonValue){.type = JSON_ARRAY, .count = from->count, .items = arena_array(arena, JsonValue, from->count)};
    for (uint32_t i = 0; i < from->count; i++) {
        const JsonValue *tool = &from->items[i];
        tools->items[i] = *tool;
        if (!json_get(tool, "name") || json_get(tool, "function")) continue;
        tools->items[i] = (JsonValue){.type = JSON_OBJECT};
        message_set(arena, &tools->items[i], "type", &kind);
        message_set(arena, &tools->items[i], "function", tool);
    }
    return tools;
}

static bool is_none(const JsonValue *value)
{
    return !value || value->type == JSON_NULL || (value->type == JSON_STRING && value->string.len == 0);
}

/* A list, or text that holds one; an empty one is none. */
static Status read_tools(Arena *arena, const JsonValue *row, const char *name, const JsonValue **out)
{
    const JsonValue *value = json_get(row, name);
    *out = NULL;
    if (is_none(value) && !is_none(json_get(row, "functions"))) value = json_get(row, name = "functions");
    if (is_none(value)) return OK;
    const JsonValue *tools = parsed(arena, value);
    FAIL_IF(tools->type != JSON_ARRAY, ERR_INVALID, "field \"%s\" is %s, want a list of tools", name, json_type_name(tools->type));
    if (tools->count > 0) *out = wrapped_tools(arena, tools);
    return OK;
}

static bool begins_with_system(const DatasetOptions *options, const TemplateTraits *tmpl, const JsonValue *messages)
{
    const char *role = "";
    json_get_str(&messages->items[0], options->role_property ? options->role_property : "role", &role);
    if (*role == 0) json_get_str(&messages->items[0], "from", &role);
    return strcmp(usual_role(role, tmpl), "system") == 0;
}

Status format_messages(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                       const TemplateTraits *tmpl, Str system, Sample *out)
{
    const JsonValue *from = json_get(row, format->messages_field);
    FAIL_IF(!from || from->type != JSON_ARRAY, ERR_INVALID, "field \"%s\" is %s, want a list of messages", format->messages_field,
            from ? json_type_name(from->type) : "missing");
    FAIL_IF(from->count == 0, ERR_INVALID, "field \"%s\" is an empty list", format->messages_field);
    TRY(read_tools(arena, row, format->tools_field, &out->tools));
    if (out->tools && tmpl->with_tools) tmpl = tmpl->with_tools;
    MessageList list = {.arena = arena};
    if (system.len > 0 && !begins_with_system(options, tmpl, from)) message_push(&list, "system", system);
    for (uint32_t i = 0; i < from->count; i++) TRY(add_message(&list, options, tmpl, &from->items[i], i + 1));
    return message_list_finish(&list, out);
}
