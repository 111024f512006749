/* Prompts of tuned models: the chat template renders messages, as in training. */
#pragma once

#include "infer/infer_model.h"
#include "text/template/template.h"

typedef struct ChatPrompt {
    const char      *system; /* NULL: no system message */
    Str              question;
    const JsonValue *variables; /* object of further template variables, or NULL */
} ChatPrompt;

typedef struct ChatMessages {
    const JsonValue *messages; /* array of message objects; see chat_check */
    const JsonValue *tools;    /* array or NULL */
    const JsonValue *variables;
    Str              opening; /* text that begins the answer; it becomes part of the prompt; empty: none */
} ChatMessages;

/* Loads the folder's template; ERR_NOT_FOUND: it has none. */
NODISCARD Status chat_template(const InferModel *infer, Template **out_template);

/* Checks a list of messages, or an object with the fields "messages" and perhaps "tools", and fills *out, which borrows from it.
 * ERR_INVALID: it is neither. */
NODISCARD Status chat_check(const JsonValue *value, ChatMessages *out);

/* template_render for messages whose tool calls may hold their arguments as JSON text. The template gets such arguments parsed, as in
 * training (an empty text as {}; a text that isn't JSON unchanged). If it refuses these messages, it gets all arguments as texts: some
 * templates, such as DeepSeek's, take only texts. */
NODISCARD Status chat_render(const Template *tmpl, const TemplateInput *input, TemplateOutput *out);

/* Appends the ids of the rendered messages and of the opening of the answer. If the tokenizer adds BOS, the ids begin with exactly one. */
NODISCARD Status chat_encode_messages(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, const ChatMessages *chat,
                                      TokenIds *out);
/* Like chat_encode_messages, for one question. */
NODISCARD Status chat_encode(const Template *tmpl, const Tokenizer *tokenizer, TokenizerScratch *scratch, const ChatPrompt *prompt,
                             TokenIds *out);

/* A copy of the object in which the field `key`, which must exist, has this value. The copy's members are in the arena. */
JsonValue chat_with_value(Arena *arena, const JsonValue *object, const char *key, JsonValue value);

/* Fills the two members with "role" and "content", and returns the message, which borrows its arguments. */
JsonValue chat_message(JsonMember members[2], const char *role, Str content);
