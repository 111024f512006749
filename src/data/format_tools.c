/* Converts tools and tool calls of any spelling to what templates expect. */
#include "data/format_internal.h"

#include <string.h>

static const JsonValue function_kind = {.type = JSON_STRING, .string = {"function", 8}};

const JsonValue *format_parsed(Arena *arena, const JsonValue *value)
{
    if (value->type != JSON_STRING) return value;
    JsonValue *out = arena_new(arena, JsonValue);
    if (json_parse(arena, "", value->string.data, value->string.len, out) == OK) return out;
    status_clear();
    return value;
}

/* Sets `key` of the object to `value`, in a copy of the object's members, which belong to the row. */
static void replace(Arena *arena, JsonValue *object, const char *key, const JsonValue *value)
{
    JsonMember *members = arena_array(arena, JsonMember, object->count);
    if (object->count) memcpy(members, object->members, sizeof *members * object->count);
    object->members = members;
    message_set(arena, object, key, value);
}

/* Parses a field that is JSON text of an object. */
static void parse_object(Arena *arena, JsonValue *object, const char *key)
{
    const JsonValue *value = json_get(object, key), *parsed = value ? format_parsed(arena, value) : NULL;
    if (parsed != value && parsed->type == JSON_OBJECT) replace(arena, object, key, parsed);
}

/* ---- calls ---- */

static JsonValue as_text(Arena *arena, const JsonValue *value)
{
    StrBuf text = {0};
    json_write(&text, value, -1);
    JsonValue out = {.type = JSON_STRING, .string = {arena_strndup(arena, strbuf_cstr(&text), text.len), text.len}};
    strbuf_deinit(&text);
    return out;
}

static Status set_arguments(Arena *arena, const RowFormat *format, const TemplateTraits *tmpl, JsonValue *function, uint32_t number,
                            uint32_t call)
{
    const JsonValue *arguments = json_get(function, "arguments"), *value = arguments;
    JsonValue        none = {.type = JSON_OBJECT}, text;
    if (!arguments && format->nulls_are_left_out) value = &none;
    if (arguments && arguments->type == JSON_STRING) {
        value = arguments->string.len ? format_parsed(arena, arguments) : &none;
        FAIL_IF(value == arguments, ERR_INVALID, "message %u: the arguments of tool call %u aren't JSON: %.60s", number, call,
                arguments->string.data);
    }
    if (!value) return OK;
    if (tmpl->text_arguments) {
        bool is_text = arguments && arguments->type == JSON_STRING && arguments->string.len;
        text = is_text ? *arguments : as_text(arena, value);
        value = &text;
    }
    replace(arena, function, "arguments", value);
    return OK;
}

static Status one_call(Arena *arena, const RowFormat *format, const TemplateTraits *tmpl, const JsonValue *from, uint32_t number,
                       uint32_t call, JsonValue *out)
{
    static const char *const known[] = {"type", "function", "id"};
    from = format_parsed(arena, from);
    FAIL_IF(from->type != JSON_OBJECT, ERR_INVALID, "message %u: tool call %u is %s, want an object", number, call,
            json_type_name(from->type));
    const JsonValue *inner = json_get(from, "function"), *id = json_get(from, "id");
    JsonValue        function = inner ? *format_parsed(arena, inner) : *from;
    FAIL_IF(function.type != JSON_OBJECT, ERR_INVALID, "message %u: tool call %u has no function", number, call);
    if (inner) note_unused(format->unused, "messages[].tool_calls[]", from, known, tmpl->hides_call_ids ? 2 : 3);
    TRY(set_arguments(arena, format, tmpl, &function, number, call));
    *out = (JsonValue){.type = JSON_OBJECT};
    if (id) message_set(arena, out, "id", id);
    message_set(arena, out, "type", &function_kind);
    message_set(arena, out, "function", &function);
    return OK;
}

Status format_calls(Arena *arena, const RowFormat *format, const TemplateTraits *tmpl, JsonValue *message, const JsonValue *calls,
                    uint32_t number)
{
    uint32_t         count = calls->type == JSON_ARRAY ? calls->count : 1;
    const JsonValue *from = calls->type == JSON_ARRAY ? calls->items : calls;
    JsonValue        list = {.type = JSON_ARRAY, .count = count, .items = arena_array(arena, JsonValue, count)};
    for (uint32_t i = 0; i < count; i++) TRY(one_call(arena, format, tmpl, &from[i], number, i + 1, &list.items[i]));
    message_set(arena, message, "tool_calls", &list);
    return OK;
}

/* ---- tools ---- */

/* Bare functions, as ShareGPT's tools and OpenAI's old functions are, get {"type": "function", "function": ...} around them. */
static Status one_tool(Arena *arena, const JsonValue *from, const char *name, uint32_t number, JsonValue *out)
{
    const JsonValue *tool = format_parsed(arena, from);
    FAIL_IF(from->type == JSON_STRING && tool->type != JSON_OBJECT, ERR_INVALID, "field \"%s\": tool %u is no JSON object: %.60s", name,
            number, from->string.data);
    *out = *tool;
    bool is_bare = json_get(tool, "name") && !json_get(tool, "function");
    if (!is_bare) parse_object(arena, out, "function");
    const JsonValue *inner = is_bare ? tool : json_get(out, "function");
    if (!inner) return OK;
    JsonValue function = *inner;
    parse_object(arena, &function, "parameters");
    if (is_bare) {
        *out = (JsonValue){.type = JSON_OBJECT};
        message_set(arena, out, "type", &function_kind);
        message_set(arena, out, "function", &function);
    } else if (function.members != inner->members) {
        replace(arena, out, "function", &function);
    }
    return OK;
}

Status format_tools(Arena *arena, const JsonValue *row, const char *name, const TemplateTraits *tmpl, Sample *out)
{
    const JsonValue *value = json_get(row, name);
    if (says_nothing(value) && !says_nothing(json_get(row, "functions"))) value = json_get(row, name = "functions");
    if (says_nothing(value)) return OK;
    const JsonValue *tools = format_parsed(arena, value);
    FAIL_IF(tools->type != JSON_ARRAY, ERR_INVALID, "field \"%s\" is %s, want a list of tools", name, json_type_name(tools->type));
    if (!(tmpl->with_tools ? tmpl->with_tools : tmpl)->hides_tools) sample_reads(out, name);
    if (tools->count == 0) return OK;
    JsonValue *list = arena_new(arena, JsonValue);
    *list = (JsonValue){.type = JSON_ARRAY, .count = tools->count, .items = arena_array(arena, JsonValue, tools->count)};
    for (uint32_t i = 0; i < tools->count; i++) TRY(one_tool(arena, &tools->items[i], name, i + 1, &list->items[i]));
    out->tools = list;
    return OK;
}
