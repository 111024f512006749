/* Access to JSON values. */
#include "base/json.h"

#include "base/str.h"

#include <string.h>

void json_position(const char *text, size_t len, size_t offset, int *line, int *column)
{
    size_t start = 0;
    *line = 1;
    if (offset > len) offset = len;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] != '\n') continue;
        ++*line;
        start = i + 1;
    }
    *column = (int)(offset - start) + 1;
}

const JsonValue *json_find(const JsonValue *object, Str key)
{
    if (!object || object->type != JSON_OBJECT) return NULL;
    for (uint32_t i = 0; i < object->count; i++) {
        const JsonMember *member = &object->members[i];
        if (str_same(member->key, key)) return &member->value;
    }
    return NULL;
}

bool json_get_str(const JsonValue *object, const char *key, const char **out)
{
    const JsonValue *value = json_get(object, key);
    if (!value || value->type != JSON_STRING || strlen(value->string.data) != value->string.len) return false;
    *out = value->string.data;
    return true;
}

bool json_get_int(const JsonValue *object, const char *key, int64_t *out)
{
    const JsonValue *value = json_get(object, key);
    if (!value || value->type != JSON_INT) return false;
    *out = value->integer;
    return true;
}

bool json_get_double(const JsonValue *object, const char *key, double *out)
{
    const JsonValue *value = json_get(object, key);
    if (!value || (value->type != JSON_INT && value->type != JSON_DOUBLE)) return false;
    *out = value->type == JSON_INT ? (double)value->integer : value->number;
    return true;
}

bool json_get_bool(const JsonValue *object, const char *key, bool *out)
{
    const JsonValue *value = json_get(object, key);
    if (!value || value->type != JSON_BOOL) return false;
    *out = value->boolean;
    return true;
}

const char *json_type_name(JsonType type)
{
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    return names[type];
}
