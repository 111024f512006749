/* Changing the members of objects. */
#pragma once

#include "base/json.h"

/* A copy of the object in a new member array, with room for `more` members; an empty object if `object` is NULL or isn't an object. */
JsonValue json_copy_object(Arena *arena, const JsonValue *object, uint32_t more);

/* Sets the value of `key`: replaces the old value, or appends a member, for which there must be room. `key` isn't copied. */
void json_set(JsonValue *object, Str key, JsonValue value);

/* Removes a member and stores its value in *out (may be NULL). False: there is no such member. */
bool json_remove(JsonValue *object, const char *key, JsonValue *out);
