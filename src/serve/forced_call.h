/* Answers that have to be one tool call (tool_choice). To find how the model's chat template begins a call, a call is rendered after the
 * conversation. The text before the call's name becomes part of the prompt. After it the model chooses the name and writes the arguments,
 * which are held to a JSON object (infer/json_guide.h). */
#pragma once

#include "infer/chat.h"

/* If the model calls names[i], its text is leads[i], then the arguments. With several names, leads[i] begins with the name. With one name,
 * the prompt contains the name too, and leads[0] is only the blanks before the arguments. */
typedef struct ForcedCall {
    int          num; /* 0: no call is forced */
    const char **names;
    Str         *leads;
    Str          opening; /* the beginning of the answer, with which the prompt ends */
} ForcedCall;

/* names: the functions that may be called. All of *out is in the arena. ERR_UNSUPPORTED: an answer can't be held to the template's form of
 * calls, or to one of the names. */
NODISCARD Status forced_call_find(Arena *arena, const Template *tmpl, const Tokenizer *tokenizer, const ChatMessages *chat,
                                  const StrList *names, ForcedCall *out);

/* Index of the name that the text calls; -1: the text was cut before the name is certain. *out_arguments: the text after the lead. */
int forced_call_read(const ForcedCall *forced, Str text, Str *out_arguments);

/* Whether the arguments begin with a complete JSON object: false if the text was cut. */
bool forced_call_is_whole(Str arguments);
