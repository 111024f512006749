/* An echoed prompt as text, and where each of its tokens stands there. */
#pragma once

#include "serve/api_request.h"

/* Fills prompt->echo and prompt->offsets, in the arena, of the prompt's tokens ids[0..prompt->num). The text is prompt->text as it was
 * sent, or what ids that came as such decode to. */
void api_echo(Arena *arena, const Tokenizer *tokenizer, const int32_t *ids, ApiPrompt *prompt);
