/* Turns messages of OpenAI's form into the form that chat templates take. */
#pragma once

#include "infer/chat.h"

/* Joins the text parts of a content into one text, and checks that the arguments of tool calls are JSON. *out is in the arena and borrows
 * from `messages`. ERR_INVALID or ERR_UNSUPPORTED names the message. */
NODISCARD Status api_messages(Arena *arena, const JsonValue *messages, const JsonValue **out);

/* If the template doesn't print messages of the role `developer`, they become system messages, as in training. ERR_UNSUPPORTED: the
 * template leaves out the messages of a role; *out_field is then "messages[i].role" of the first one, in the arena. Messages that the
 * template refuses pass: chat_encode_messages reports them. */
NODISCARD Status api_settle_roles(Arena *arena, const Template *tmpl, ChatMessages *chat, const char **out_field);
