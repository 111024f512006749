/* The text of an echoed prompt, and the position of each of its tokens there. */
#pragma once

#include "serve/api_request.h"

/* Fills prompt->echo and prompt->offsets, both in the arena. ids: the prompt's prompt->num tokens. The echo is prompt->text as it was sent,
 * or the decoded ids if the prompt was sent as ids. */
void api_echo(Arena *arena, const Tokenizer *tokenizer, const int32_t *ids, ApiPrompt *prompt);
