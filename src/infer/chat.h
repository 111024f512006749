/* Asking a tuned model: a question becomes what the chat template makes of it, as in training. */
#pragma once

#include "text/template.h"
#include "text/tokenizer.h"

/* Appends the ids of one user's message and of what opens the answer. BOS comes once, when the tokenizer adds it. */
NODISCARD Status chat_encode(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, Str question, TokenIds *out);
