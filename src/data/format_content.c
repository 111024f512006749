/* A message's content: a text, or a list of text and thinking parts as several APIs spell them. */
#include "data/format_internal.h"

#include <string.h>

typedef enum PartKind { PART_OTHER, PART_TEXT, PART_THOUGHT } PartKind;

typedef struct Part {
    PartKind kind;
    bool     is_usual; /* {"type": "text", "text": ...}, or {"type": "thinking", "thinking": ...} */
    Str      words;
} Part;

static const JsonValue *string_of(const JsonValue *part, const char *const *keys, size_t count, const char **out_key)
{
    for (size_t i = 0; i < count; i++) {
        const JsonValue *value = json_get(part, keys[i]);
        if (!value || value->type != JSON_STRING) continue;
        *out_key = keys[i];
        return value;
    }
    return NULL;
}

/* The words of thinking that is itself a list of {"type": "text", "text": ...}. */
static bool join_texts(Arena *arena, const JsonValue *list, Str *out)
{
    StrBuf text = {0};
    bool   is_joined = list && list->type == JSON_ARRAY;
    for (uint32_t i = 0; is_joined && i < list->count; i++) {
        const JsonValue *words = list->items[i].type == JSON_STRING ? &list->items[i] : json_get(&list->items[i], "text");
        is_joined = words && words->type == JSON_STRING;
        if (is_joined) strbuf_append(&text, words->string.data, words->string.len);
    }
    if (is_joined) *out = (Str){arena_strndup(arena, strbuf_cstr(&text), text.len), text.len};
    strbuf_deinit(&text);
    return is_joined;
}

static PartKind kind_of(const JsonValue *type)
{
    static const char *const texts[] = {"text", "input_text", "output_text"}, *const thoughts[] = {"thinking", "reasoning"};
    if (!type || type->type == JSON_NULL) return PART_TEXT;
    for (size_t i = 0; type->type == JSON_STRING && i < 3; i++)
        if (str_equal(type->string, texts[i])) return PART_TEXT;
    for (size_t i = 0; type->type == JSON_STRING && i < 2; i++)
        if (str_equal(type->string, thoughts[i])) return PART_THOUGHT;
    return PART_OTHER;
}

static Part read_part(Arena *arena, const RowFormat *format, const JsonValue *from)
{
    static const char *const text_keys[] = {"text", "content", "value"}, *const thought_keys[] = {"thinking", "reasoning", "text",
                                                                                                  "content", "value"};
    if (from->type == JSON_STRING) return (Part){PART_TEXT, false, from->string};
    const JsonValue *type = json_get(from, "type");
    Part             part = {.kind = kind_of(type)};
    const char      *key = "thinking";
    if (part.kind == PART_OTHER) return part;
    const JsonValue *words = part.kind == PART_TEXT ? string_of(from, text_keys, 3, &key) : string_of(from, thought_keys, 5, &key);
    const char      *usual = part.kind == PART_TEXT ? "text" : "thinking";
    part.is_usual = words && type && type->type == JSON_STRING && str_equal(type->string, usual) && strcmp(key, usual) == 0;
    if (words)
        part.words = words->string;
    else if (part.kind != PART_THOUGHT || !join_texts(arena, json_get(from, key), &part.words))
        return (Part){.kind = PART_OTHER};
    const char *used[] = {"type", key};
    note_unused(format->unused, "messages[].content[]", from, used, 2);
    return part;
}

static JsonValue usual_part(Arena *arena, Part part)
{
    const char *name = part.kind == PART_TEXT ? "text" : "thinking";
    JsonValue   out = {.type = JSON_OBJECT}, words = {.type = JSON_STRING, .string = part.words}, type = words;
    type.string = str_of(name);
    message_set(arena, &out, "type", &type);
    message_set(arena, &out, name, &words);
    return out;
}

/* The words of all parts of one kind, concatenated. */
static Str joined(Arena *arena, const Part *parts, uint32_t count, PartKind kind)
{
    StrBuf text = {0};
    for (uint32_t i = 0; i < count; i++)
        if (parts[i].kind == kind) strbuf_append(&text, parts[i].words.data, parts[i].words.len);
    Str out = {arena_strndup(arena, strbuf_cstr(&text), text.len), text.len};
    strbuf_deinit(&text);
    return out;
}

/* A list of parts stays a list if the template takes lists; else its texts are joined. Thinking that the template doesn't take goes to
 * *out_thoughts. */
static Status content_of_parts(Arena *arena, const RowFormat *format, const JsonValue *list, const TemplateTraits *tmpl, uint32_t number,
                               JsonValue *out, Str *out_thoughts)
{
    Part     *parts = arena_array(arena, Part, list->count);
    JsonValue kept = {.type = JSON_ARRAY, .items = arena_array(arena, JsonValue, list->count)};
    bool      is_typed = true, is_usual = true, has_thought = false;
    for (uint32_t i = 0; i < list->count; i++) {
        parts[i] = read_part(arena, format, &list->items[i]);
        FAIL_IF(parts[i].kind == PART_OTHER, ERR_INVALID,
                "message %u: part %u of the content is no {\"type\": \"text\", \"text\": ...}; only texts can be trained on", number,
                i + 1);
        has_thought |= parts[i].kind == PART_THOUGHT;
        is_typed &= list->items[i].type == JSON_OBJECT && json_get(&list->items[i], "type") != NULL;
        bool stays = parts[i].kind == PART_TEXT || tmpl->takes_thoughts;
        is_usual &= stays && parts[i].is_usual;
        if (stays) kept.items[kept.count++] = parts[i].is_usual ? list->items[i] : usual_part(arena, parts[i]);
    }
    bool keeps_thoughts = has_thought && tmpl->takes_thoughts;
    if (has_thought && !keeps_thoughts) *out_thoughts = joined(arena, parts, list->count, PART_THOUGHT);
    if (keeps_thoughts || (tmpl->takes_parts && is_typed))
        *out = is_usual ? *list : kept;
    else
        *out = (JsonValue){.type = JSON_STRING, .string = joined(arena, parts, list->count, PART_TEXT)};
    return OK;
}

Status format_content(Arena *arena, const RowFormat *format, JsonValue *message, const JsonValue *content, const TemplateTraits *tmpl,
                      uint32_t number, Str *out_thoughts)
{
    JsonValue of_parts;
    *out_thoughts = (Str){"", 0};
    FAIL_IF(content->type != JSON_STRING && content->type != JSON_ARRAY, ERR_INVALID, "message %u: content is %s, want a text", number,
            json_type_name(content->type));
    if (content->type == JSON_ARRAY) {
        TRY(content_of_parts(arena, format, content, tmpl, number, &of_parts, out_thoughts));
        content = &of_parts;
    }
    message_set(arena, message, "content", content);
    return OK;
}
