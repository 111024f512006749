/* Answers that have to be one call of a tool (tool_choice). How the model's chat template begins a call is found by rendering one behind
 * the conversation. What stands there before the name opens the answer as a part of the prompt; behind it the model chooses the name and
 * writes the arguments, held to a JSON object (infer/json_guide.h). */
#pragma once

#include "infer/chat.h"

/* What the model writes begins with leads[i], all of it, where it calls names[i]; the arguments follow. Of one name alone that stands in
 * the prompt too, so that its lead has the blanks before the arguments alone. */
typedef struct ForcedCall {
    int          num; /* 0: no call is forced */
    const char **names;
    Str         *leads;
    Str          opening; /* of the answer, in the prompt */
} ForcedCall;

/* For the names that may be called, of the conversation's tools. All is in the arena. ERR_UNSUPPORTED: the template, or a name, is of
 * a form that the answer can't be held to. */
NODISCARD Status forced_call_find(Arena *arena, const Template *tmpl, const Tokenizer *tokenizer, const ChatMessages *chat,
                                  const StrList *names, ForcedCall *out);

/* Which name a text calls, -1: it was cut before that is settled; *out_arguments: what follows, cut where the text is. */
int forced_call_read(const ForcedCall *forced, Str text, Str *out_arguments);

/* The arguments are a JSON object to its end: the text wasn't cut. */
bool forced_call_is_whole(Str arguments);
