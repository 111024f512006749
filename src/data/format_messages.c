/* Converts messages of any spelling to what templates expect: role and content, tool calls with their arguments as objects. */
#include "base/array.h"
#include "config/roles.h"
#include "data/format_internal.h"

#include <string.h>
#include <strings.h>

/* Appends a message for the caller to fill; its train flag is -1. */
static JsonValue *next_message(MessageList *list)
{
    list->items = arena_room(list->arena, list->items, list->count + 1, &list->capacity, sizeof *list->items);
    list->train = arena_room(list->arena, list->train, list->count + 1, &list->train_capacity, sizeof *list->train);
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
    *messages = (JsonValue){.type = JSON_ARRAY, .count = list->count, .items = list->items};
    out->messages = messages;
    out->train = list->train;
    return OK;
}

/* The role as templates spell it; an unknown role stays as it is. */
static const char *usual_role(const char *role, const TemplateTraits *tmpl)
{
    if (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0) return role;
    const char *known = role_known(role);
    if (!known) return role;
    return strcmp(known, "developer") == 0 && !tmpl->prints_developer ? "system" : known;
}

/* Fields that say whether a message is trained. is_masked: true means that it isn't. */
static const struct {
    const char *name;
    bool        is_masked;
} flags[] = {{"train", false}, {"training", false}, {"weight", false}, {"loss", false}, {"loss_weight", false}, {"masked", true}};
enum { NUM_FLAGS = sizeof flags / sizeof flags[0] };

/* Returns 1 for true and 1, 0 for false and 0, else -1. */
static int8_t yes_or_no(const JsonValue *value)
{
    double number = value->type == JSON_BOOL     ? value->boolean
                    : value->type == JSON_INT    ? (double)value->integer
                    : value->type == JSON_DOUBLE ? value->number
                                                 : -1;
    return number == 1 ? 1 : number == 0 ? 0 : -1;
}

/* Whether a message is trained: *out is 1 if the row says so, 0 if it says no, -1 if it doesn't say. A number "loss" other than 0 and 1 is
 * a measured loss. */
static Status train_flag(const RowFormat *format, const JsonValue *message, uint32_t number, int8_t *out)
{
    const char *first = NULL;
    *out = -1;
    for (int i = 0; i < NUM_FLAGS; i++) {
        const char      *name = flags[i].name;
        const JsonValue *value = json_get(message, name);
        if (!value || value->type == JSON_NULL) continue;
        int8_t flag = yes_or_no(value);
        bool   is_measured = flag < 0 && strcmp(name, "loss") == 0 && (value->type == JSON_INT || value->type == JSON_DOUBLE);
        if (is_measured && format->unused) field_set_add(format->unused, "messages[]", str_of(name));
        if (is_measured) continue;
        FAIL_IF(flag < 0, ERR_INVALID, "message %u: \"%s\" says whether it is trained, want true, false, 1 or 0", number, name);
        flag = flags[i].is_masked ? !flag : flag;
        FAIL_IF(first && *out != flag, ERR_INVALID, "message %u: \"%s\" and \"%s\" disagree whether it is trained; keep one of them",
                number, first, name);
        *out = flag;
        first = name;
    }
    return OK;
}

/* Is the message {role, content} with a usual role? Most messages are, and need no conversion. */
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

/* Sets an answer's thinking under the template's reasoning_key or, if the template has none, under the row's own key. Returns the row's
 * key; NULL: the row has no thinking. */
static const char *set_reasoning(Arena *arena, JsonValue *message, const JsonValue *from, const TemplateTraits *tmpl)
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
    return key;
}

/* The state of reading a row's messages. */
typedef struct MessageReader {
    const DatasetOptions *options;
    const RowFormat      *format;
    const TemplateTraits *tmpl;
    MessageList           list;
} MessageReader;

/* The parts of a message, and the names of their fields. */
typedef struct MessageParts {
    const char      *role_name, *content_name, *calls_name;
    const char      *role;
    const JsonValue *content, *calls; /* NULL: missing, or JSON null */
    bool             is_call;         /* the role is function_call: the content is the call */
} MessageParts;

static Status find_parts(const MessageReader *reader, const JsonValue *from, uint32_t number, MessageParts *out)
{
    const DatasetOptions *options = reader->options;
    FAIL_IF(from->type != JSON_OBJECT, ERR_INVALID, "message %u is %s, want an object", number, json_type_name(from->type));
    bool is_sharegpt = !options->role_property && json_get(from, "from");
    *out = (MessageParts){.role_name = options->role_property ? options->role_property
                                       : is_sharegpt          ? "from"
                                                              : "role",
                          .content_name = options->content_property ? options->content_property : "content",
                          .calls_name = "tool_calls"};
    out->content = json_get(from, out->content_name);
    if (!out->content && !options->content_property) out->content = json_get(from, out->content_name = "value");
    FAIL_IF(!json_get_str(from, out->role_name, &out->role), ERR_INVALID, "message %u has no \"%s\"", number, out->role_name);
    const JsonValue *calls = out->calls = json_get(from, "tool_calls");
    if (says_nothing(calls)) out->calls = json_get(from, out->calls_name = "function_call"); /* OpenAI's old form */
    out->is_call = strcasecmp(out->role, "function_call") == 0;
    bool has_calls = out->calls || (calls && calls->type != JSON_NULL);
    bool may_lack = !out->is_call && (has_calls || reader->format->nulls_are_left_out);
    FAIL_IF(!out->content && !may_lack, ERR_INVALID, "message %u has no \"%s\"", number,
            is_sharegpt || options->content_property ? out->content_name : "content");
    if (out->content && out->content->type == JSON_NULL && !out->is_call) out->content = NULL;
    return OK;
}

/* Adds to format->unused the fields of a message that aren't used. */
static void note_message(const MessageReader *reader, const JsonValue *from, const MessageParts *parts, const char *reasoning)
{
    const TemplateTraits *tmpl = reader->tmpl;
    const char           *used[6 + NUM_FLAGS] = {parts->role_name, parts->content_name};
    int                   count = 2;
    if (!reader->format->unused) return;
    bool is_tool = strcmp(usual_role(parts->role, tmpl), "tool") == 0;
    if (!(is_tool ? tmpl->hides_tool_names : tmpl->hides_names)) used[count++] = "name";
    if (!tmpl->hides_call_ids) used[count++] = "tool_call_id";
    if (!parts->is_call) used[count++] = parts->calls_name;
    if (reasoning) used[count++] = reasoning;
    for (int i = 0; i < NUM_FLAGS; i++) used[count++] = flags[i].name;
    note_unused(reader->format->unused, "messages[]", from, used, count);
}

static Status set_thoughts(MessageReader *reader, JsonValue *message, const JsonValue *from, uint32_t number, Str thoughts,
                           const char **out_key)
{
    Arena *arena = reader->list.arena;
    *out_key = set_reasoning(arena, message, from, reader->tmpl);
    if (thoughts.len == 0) return OK;
    FAIL_IF(*out_key && !says_nothing(json_get(from, *out_key)), ERR_INVALID,
            "message %u has thinking among its parts and in \"%s\"; keep one of them", number, *out_key);
    JsonValue value = {.type = JSON_STRING, .string = thoughts};
    message_set(arena, message, reader->tmpl->reasoning_key ? reader->tmpl->reasoning_key : reasoning_keys[0], &value);
    return OK;
}

static Status add_message(MessageReader *reader, const JsonValue *from, uint32_t number)
{
    MessageList *list = &reader->list;
    MessageParts parts;
    Str          thoughts = {"", 0};
    const char  *reasoning;
    if (is_ready(reader->options, from)) {
        *next_message(list) = *from;
        return OK;
    }
    TRY(find_parts(reader, from, number, &parts));
    JsonValue *message = message_push(list, usual_role(parts.role, reader->tmpl), (Str){"", 0});
    if (parts.is_call) {
        const JsonValue *call = format_parsed(list->arena, parts.content);
        FAIL_IF(call->type != JSON_OBJECT && call->type != JSON_ARRAY, ERR_INVALID, "message %u: the function call isn't JSON", number);
        TRY(format_calls(list->arena, reader->format, reader->tmpl, message, call, number));
    } else {
        const JsonValue *calls = says_nothing(parts.calls) ? NULL : format_parsed(list->arena, parts.calls);
        if (parts.content) TRY(format_content(list->arena, reader->format, message, parts.content, reader->tmpl, number, &thoughts));
        if (!says_nothing(calls)) TRY(format_calls(list->arena, reader->format, reader->tmpl, message, calls, number));
    }
    static const Str kept[] = {{"name", 4}, {"tool_call_id", 12}};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        const JsonValue *value = json_find(from, kept[i]);
        if (value && value->type != JSON_NULL) message_set(list->arena, message, kept[i].data, value);
    }
    TRY(set_thoughts(reader, message, from, number, thoughts, &reasoning));
    note_message(reader, from, &parts, reasoning);
    return train_flag(reader->format, from, number, &list->train[list->count - 1]);
}

static bool begins_with_system(const DatasetOptions *options, const TemplateTraits *tmpl, const JsonValue *messages)
{
    const char *role = "";
    json_get_str(&messages->items[0], options->role_property ? options->role_property : "role", &role);
    if (*role == 0) json_get_str(&messages->items[0], "from", &role);
    return strcmp(usual_role(role, tmpl), "system") == 0;
}

/* ---- lists of messages ---- */

bool format_is_message(const JsonValue *value)
{
    const char *role = "";
    if (value->type != JSON_OBJECT) return false;
    bool is_usual = json_get_str(value, "role", &role) && (json_get(value, "content") || json_get(value, "tool_calls"));
    bool is_sharegpt = !is_usual && json_get_str(value, "from", &role) && json_get(value, "value");
    return (is_usual || is_sharegpt) && role_known(role);
}

/* Is the value a text that begins with this byte, after blanks? */
static bool begins_with(const JsonValue *value, char byte)
{
    size_t at = 0;
    if (value->type != JSON_STRING) return false;
    while (at < value->string.len && strchr(" \t\r\n", value->string.data[at]) && value->string.data[at]) at++;
    return at < value->string.len && value->string.data[at] == byte;
}

const JsonValue *format_message_list(Arena *arena, const JsonValue *value)
{
    if (value && begins_with(value, '[')) value = format_parsed(arena, value);
    if (!value || value->type != JSON_ARRAY) return NULL;
    bool has_texts = false;
    for (uint32_t i = 0; i < value->count; i++) has_texts |= begins_with(&value->items[i], '{');
    if (!has_texts) return value;
    JsonValue *list = arena_new(arena, JsonValue);
    *list = (JsonValue){.type = JSON_ARRAY, .count = value->count, .items = arena_array(arena, JsonValue, value->count)};
    for (uint32_t i = 0; i < value->count; i++) list->items[i] = *format_parsed(arena, &value->items[i]);
    return list;
}

static Status add_all(MessageReader *reader, const JsonValue *messages, uint32_t first_number)
{
    for (uint32_t i = 0; i < messages->count; i++) TRY(add_message(reader, &messages->items[i], first_number + i));
    return OK;
}

/* Adds the completion of a prompt: messages, or the text of one. Messages of the prompt are trained only by a flag or by TRAIN_ON_ALL. */
static Status add_completion(MessageReader *reader, const JsonValue *row, uint32_t first_number)
{
    MessageList     *list = &reader->list;
    const char      *name = reader->format->completion_field;
    const JsonValue *value = json_get(row, name), *messages = format_message_list(list->arena, value);
    for (uint32_t i = 0; i < list->count && reader->options->train_on != TRAIN_ON_ALL; i++)
        if (list->train[i] < 0) list->train[i] = 0;
    if (messages) return add_all(reader, messages, first_number);
    FAIL_IF(!value || value->type != JSON_STRING, ERR_INVALID, "field \"%s\" is %s, want a list of messages or a text", name,
            value ? json_type_name(value->type) : "missing");
    message_push(list, "assistant", value->string);
    return OK;
}

/* In rows whose nulls are left out, a message may lack its content; but if all lack it, the content has another name. */
static bool has_contents(const MessageReader *reader, const JsonValue *messages)
{
    const char *name = reader->options->content_property ? reader->options->content_property : "content";
    for (uint32_t i = 0; i < messages->count; i++)
        if (json_get(&messages->items[i], name) || json_get(&messages->items[i], "value") || json_get(&messages->items[i], "tool_calls"))
            return true;
    return !reader->format->nulls_are_left_out;
}

Status format_messages(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                       const TemplateTraits *tmpl, SystemPrompt system, Sample *out)
{
    const JsonValue *value = json_get(row, format->messages_field), *from = format_message_list(arena, value);
    MessageReader    reader = {options, format, tmpl, {.arena = arena}};
    FAIL_IF(!from, ERR_INVALID, "field \"%s\" is %s, want a list of messages", format->messages_field,
            value ? json_type_name(value->type) : "missing");
    FAIL_IF(from->count == 0, ERR_INVALID, "field \"%s\" is an empty list", format->messages_field);
    FAIL_IF(!has_contents(&reader, from), ERR_INVALID, "field \"%s\": no message has a content", format->messages_field);
    TRY(format_tools(arena, row, format->tools_field, tmpl, out));
    if (out->tools && tmpl->with_tools) reader.tmpl = tmpl = tmpl->with_tools;
    if (system.text.len > 0 && !begins_with_system(options, tmpl, from)) {
        message_push(&reader.list, "system", system.text);
        sample_reads(out, system.field);
    }
    TRY(add_all(&reader, from, 1));
    sample_reads(out, format->messages_field);
    if (format->completion_field) TRY(add_completion(&reader, row, from->count + 1));
    sample_reads(out, format->completion_field);
    return message_list_finish(&reader.list, out);
}
