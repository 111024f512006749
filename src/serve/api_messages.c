/* See api_messages.h. */
#include "serve/api_messages.h"

#include <string.h>

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

static Status check_call(Arena *arena, const JsonValue *call, uint32_t number)
{
    const JsonValue *function = json_get(call, "function"), *arguments = function ? json_get(function, "arguments") : NULL;
    JsonValue        value;
    FAIL_IF(!function, ERR_INVALID, "message %u: a tool call has no function; expected {\"type\", \"function\": {\"name\", \"arguments\"}}",
            number);
    if (!arguments || arguments->type != JSON_STRING || !arguments->string.len) return OK;
    Status status = json_parse(arena, "its arguments", arguments->string.data, arguments->string.len, &value);
    return status == OK ? OK : status_prefix(status, "message %u: a tool call", number);
}

static Status check_calls(Arena *arena, const JsonValue *calls, uint32_t number)
{
    FAIL_IF(calls->type != JSON_ARRAY, ERR_INVALID, "message %u: tool_calls is %s; expected a list", number, json_type_name(calls->type));
    for (uint32_t i = 0; i < calls->count; i++) TRY(check_call(arena, &calls->items[i], number));
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
        *out = chat_with_value(arena, out, "content", value);
    }
    return has_calls ? check_calls(arena, calls, number) : OK;
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

/* ---- what a template takes ---- */

/* The most roles of a request that are checked; each check costs up to two renderings. */
enum { MOST_ROLES = 6 };

typedef struct Layout {
    Arena           *arena;
    const Template  *tmpl;
    const JsonValue *asked; /* the messages with the roles that the request gave */
    ChatMessages    *chat;
    int64_t          now;   /* the time given to all renderings, so that they differ by their messages alone */
    TemplateOutput   whole; /* the rendering of chat->messages */
} Layout;

static const char *role_of(const JsonValue *message)
{
    const char *role;
    return json_get_str(message, "role", &role) ? role : "";
}

/* False: the template refuses the messages. */
static bool lay_out(const Layout *l, const JsonValue *messages, TemplateOutput *out)
{
    TemplateInput input = {
        .messages = messages, .tools = l->chat->tools, .variables = l->chat->variables, .add_generation_prompt = true, .now_unix = l->now};
    bool is_ok = chat_render(l->tmpl, &input, out) == OK;
    if (!is_ok) status_clear();
    return is_ok;
}

typedef enum Change { LEAVE_OUT, CHANGE_CONTENT, CHANGE_ROLE } Change;

static JsonValue changed_message(Arena *arena, const JsonValue *message, Change change)
{
    const JsonValue *content = json_get(message, "content");
    JsonValue        text = {.type = JSON_STRING, .string = str_of("system")};
    if (change == CHANGE_ROLE) return chat_with_value(arena, message, "role", text);
    text.string = str_of(content && content->type == JSON_STRING && str_equal(content->string, "Alpha") ? "Omega" : "Alpha");
    return chat_with_value(arena, message, "content", text);
}

/* A copy of the messages in which each message of the role is changed. */
static JsonValue changed(const Layout *l, const char *role, Change change)
{
    const JsonValue *messages = l->chat->messages;
    JsonValue        list = *messages;
    list.items = arena_array(l->arena, JsonValue, messages->count);
    list.count = 0;
    for (uint32_t i = 0; i < messages->count; i++) {
        bool is_meant = strcmp(role_of(&l->asked->items[i]), role) == 0;
        if (is_meant && change == LEAVE_OUT) continue;
        list.items[list.count++] = is_meant ? changed_message(l->arena, &messages->items[i], change) : messages->items[i];
    }
    return list;
}

/* Whether this change to all messages of the role leaves the rendered text the same. */
static bool is_same_text(const Layout *l, const char *role, Change change)
{
    JsonValue      messages = changed(l, role, change);
    TemplateOutput other = {0};
    bool           is_same = lay_out(l, &messages, &other) && other.text.len == l->whole.text.len &&
                   memcmp(strbuf_cstr(&other.text), strbuf_cstr(&l->whole.text), other.text.len) == 0;
    template_output_deinit(&other);
    return is_same;
}

/* Whether the template might leave the message out. Not checked: messages without text; users' and assistants', which every template
 * prints. */
static bool is_checked(const JsonValue *message)
{
    const char      *role = role_of(message);
    const JsonValue *content = json_get(message, "content");
    return content && content->type == JSON_STRING && content->string.len && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0;
}

static Status check_role(const Layout *l, uint32_t number, const char **out_field)
{
    const char *role = role_of(&l->asked->items[number]);
    if (!is_same_text(l, role, CHANGE_CONTENT) || !is_same_text(l, role, LEAVE_OUT)) return OK;
    StrBuf field = {0};
    strbuf_printf(&field, "messages[%u].role", number);
    *out_field = arena_strdup(l->arena, strbuf_cstr(&field));
    strbuf_deinit(&field);
    FAIL(ERR_UNSUPPORTED, "the model's chat template leaves out what messages of the role %.40s say; say it in another's", role);
}

static Status check_roles(const Layout *l, const char **out_field)
{
    const char *seen[MOST_ROLES];
    int         num_seen = 0;
    for (uint32_t i = 0; i < l->asked->count && num_seen < MOST_ROLES; i++) {
        const char *role = role_of(&l->asked->items[i]);
        bool        is_new = is_checked(&l->asked->items[i]);
        for (int k = 0; k < num_seen && is_new; k++) is_new = strcmp(seen[k], role) != 0;
        if (!is_new) continue;
        seen[num_seen++] = role;
        TRY(check_role(l, i, out_field));
    }
    return OK;
}

Status api_settle_roles(Arena *arena, const Template *tmpl, ChatMessages *chat, const char **out_field)
{
    static const char developer[] = "developer";
    Layout            l = {.arena = arena, .tmpl = tmpl, .asked = chat->messages, .chat = chat, .now = template_now(tmpl)};
    bool              is_any = false, has_developer = false;
    for (uint32_t i = 0; i < l.asked->count; i++) {
        is_any |= is_checked(&l.asked->items[i]);
        has_developer |= strcmp(role_of(&l.asked->items[i]), developer) == 0;
    }
    if (!is_any) return OK;
    bool is_laid_out = lay_out(&l, chat->messages, &l.whole);
    if (has_developer && (!is_laid_out || is_same_text(&l, developer, CHANGE_CONTENT))) {
        JsonValue *renamed = arena_new(arena, JsonValue);
        *renamed = changed(&l, developer, CHANGE_ROLE);
        chat->messages = renamed;
        template_output_deinit(&l.whole);
        is_laid_out = lay_out(&l, chat->messages, &l.whole);
    }
    Status status = is_laid_out ? check_roles(&l, out_field) : OK;
    template_output_deinit(&l.whole);
    return status;
}
