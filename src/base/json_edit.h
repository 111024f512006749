/* Changing the members of an object. */
#pragma once

#include "base/json.h"

/* An object with the same members, in an array of its own that has room for `more`; an empty one where it is none (NULL too). */
JsonValue json_copy_object(Arena *arena, const JsonValue *object, uint32_t more);

/* Gives a key this value: in its place, or as a new last member, for which there must be room. `key` isn't copied. */
void json_set(JsonValue *object, Str key, JsonValue value);

/* Removes a member; *out (may be NULL) is its value. False: there is none. */
bool json_remove(JsonValue *object, const char *key, JsonValue *out);
