/* Messages of OpenAI's form as chat templates take them. */
#pragma once

#include "base/json.h"

/* A content of text parts becomes one text; the arguments of a tool call, which are the text of a JSON object, become that object. In the
 * arena, parts are borrowed. ERR_INVALID or ERR_UNSUPPORTED names the message. */
NODISCARD Status api_messages(Arena *arena, const JsonValue *messages, const JsonValue **out);
