/* The JSON of answers: the texts of a request, as one answer or as the parts of a stream. */
#pragma once

#include "serve/api_request.h"
#include "serve/engine.h"
#include "serve/tool_calls.h"

typedef struct ApiTop {
    int32_t id;
    float   logprob;
} ApiTop;

typedef struct ApiToken {
    ApiTop own;
    size_t first_top; /* index of its num_top entries in ApiChoice.tops */
    int    num_top;
    size_t at; /* bytes of text before this token */
    bool   is_given;
} ApiToken;

/* One text of an answer. */
typedef struct ApiChoice {
    const ApiRequest *request;
    const Tokenizer  *tokenizer;
    const ApiPrompt  *prompt;
    int               index;
    StrBuf            content; /* the text without its tool calls */
    StrBuf            calls;   /* JSON objects, separated by commas */
    StrBuf            forced;  /* the text of a forced call */
    int               num_calls;
    bool              is_cut; /* the forced call's arguments are incomplete */
    ApiToken         *tokens; /* kept only if log-probabilities are asked for */
    size_t            num_tokens, capacity;
    ApiTop           *tops;
    size_t            num_tops, tops_capacity;
    size_t            text_bytes; /* bytes of the text so far, tool calls included */
    int64_t           count;      /* tokens of the text */
    const char       *reason;     /* as EngineEvent.reason; NULL: the text isn't finished */
    ToolReader        reader;
    /* If the answer is streamed: how much was sent so far. */
    size_t sent_content, sent_calls, sent_tokens;
    bool   has_begun, has_told_prompt; /* has_told_prompt: the null log-probability of the prompt's first token was sent */
} ApiChoice;

void api_choice_init(ApiChoice *choice, const ApiRequest *request, const Tokenizer *tokenizer, const ApiPrompt *prompt, int index);
void api_choice_deinit(ApiChoice *choice);
void api_choice_take(ApiChoice *choice, const EngineEvent *event);

typedef struct ApiAnswer {
    const ApiRequest *request;
    char              id[40];
    int64_t           created; /* seconds since 1970 */
    ApiChoice        *choices;
    int               num_choices;
} ApiAnswer;

int64_t api_prompt_tokens(const ApiAnswer *answer);
int64_t api_text_tokens(const ApiAnswer *answer);

/* Appends the whole answer. */
void api_write(const ApiAnswer *answer, StrBuf *out);
/* Appends stream events, "data: {...}" and an empty line each, for everything new in this choice. */
void api_write_parts(const ApiAnswer *answer, ApiChoice *choice, StrBuf *out);
/* Appends the events after the last part of the last choice: usage if asked for, and [DONE]. */
void api_write_end(const ApiAnswer *answer, StrBuf *out);
