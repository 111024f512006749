/* See json_edit.h. */
#include "base/json_edit.h"

#include <string.h>

JsonValue json_copy_object(Arena *arena, const JsonValue *object, uint32_t more)
{
    uint32_t  count = object && object->type == JSON_OBJECT ? object->count : 0;
    JsonValue copy = {.type = JSON_OBJECT, .count = count, .members = arena_array(arena, JsonMember, count + more)};
    if (count) memcpy(copy.members, object->members, count * sizeof *copy.members);
    return copy;
}

void json_set(JsonValue *object, Str key, JsonValue value)
{
    JsonValue *old = (JsonValue *)json_find(object, key);
    if (old)
        *old = value;
    else
        object->members[object->count++] = (JsonMember){key, value};
}

bool json_remove(JsonValue *object, const char *key, JsonValue *out)
{
    const JsonValue *value = json_get(object, key);
    if (!value) return false;
    if (out) *out = *value;
    JsonMember *at = object->members;
    while (&at->value != value) at++;
    memmove(at, at + 1, (size_t)(object->members + --object->count - at) * sizeof *at);
    return true;
}
