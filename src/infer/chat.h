/* Asking a tuned model: a question becomes what the chat template makes of it, as in training. */
#pragma once

#include "text/template/template.h"
#include "text/tokenizer.h"

typedef struct ChatPrompt {
    const char      *system; /* NULL: no such message */
    Str              question;
    const JsonValue *variables; /* object of further variables of the template, or NULL */
} ChatPrompt;

/* Appends the ids of the messages and of what opens the answer. BOS comes once, when the tokenizer adds it. */
NODISCARD Status chat_encode(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, const ChatPrompt *prompt,
                             TokenIds *out);
