/* Messages of OpenAI's form as chat templates take them. */
#pragma once

#include "infer/chat.h"

/* A content of text parts becomes one text; the arguments of a tool call, which are the text of a JSON object, become that object (an empty
 * text: an empty one). In the arena, parts are borrowed. ERR_INVALID or ERR_UNSUPPORTED names the message. */
NODISCARD Status api_messages(Arena *arena, const JsonValue *messages, const JsonValue **out);

/* Of the messages of api_messages: where the template refuses them, and takes the arguments of calls as the texts that were asked for,
 * these come back, as for DeepSeek's templates, which add them to a text. */
void api_settle_calls(Arena *arena, const Template *tmpl, const JsonValue *asked, ChatMessages *chat);

/* Messages of api_messages whose role is `developer` become system messages where the template prints no developer's, as in training.
 * ERR_UNSUPPORTED: the template leaves the messages of a role out; *out_field is then the field "messages[i].role" of the first, in the
 * arena. Messages that the template refuses are left to chat_encode_messages. */
NODISCARD Status api_settle_roles(Arena *arena, const Template *tmpl, ChatMessages *chat, const char **out_field);
