/* Asking a tuned model: messages become what the chat template makes of them, as in training. */
#pragma once

#include "infer/infer_model.h"
#include "text/template/template.h"

typedef struct ChatPrompt {
    const char      *system; /* NULL: no such message */
    Str              question;
    const JsonValue *variables; /* object of further variables of the template, or NULL */
} ChatPrompt;

typedef struct ChatMessages {
    const JsonValue *messages; /* array of objects: chat_check */
    const JsonValue *tools;    /* array or NULL */
    const JsonValue *variables;
    Str              opening; /* text that begins the answer, as a part of the prompt; empty: none */
} ChatMessages;

/* The folder's template; ERR_NOT_FOUND where it has none. */
NODISCARD Status chat_template(const InferModel *infer, Template **out_template);

/* Of a list of messages, or an object with the fields "messages" and perhaps "tools": ERR_INVALID where it isn't that. */
NODISCARD Status chat_check(const JsonValue *value, ChatMessages *out);

/* Appends the ids of the messages and of what opens the answer. BOS comes once, when the tokenizer adds it. */
NODISCARD Status chat_encode_messages(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, const ChatMessages *chat,
                                      TokenIds *out);
/* The same of one question. */
NODISCARD Status chat_encode(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, const ChatPrompt *prompt,
                             TokenIds *out);

/* Fills members (2 of them) with {"role", "content"}, which borrows both. */
JsonValue chat_message(JsonMember members[2], const char *role, Str content);
