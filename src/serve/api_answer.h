/* The JSON of answers: what a request's texts have come to so far, whole or as parts of a stream. */
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
    size_t first_top; /* of ApiChoice.tops, num_top of them */
    int    num_top;
    size_t at; /* bytes of text before it */
    bool   is_given;
} ApiToken;

/* One text of an answer. */
typedef struct ApiChoice {
    const ApiRequest *request;
    const Tokenizer  *tokenizer;
    const ApiPrompt  *prompt;
    int               index;
    StrBuf            content; /* without calls of tools */
    StrBuf            calls;   /* JSON objects, a comma between */
    StrBuf            forced;  /* the text of a call that is forced */
    int               num_calls;
    bool              is_cut; /* the call that is forced has a part of its arguments */
    ApiToken         *tokens; /* where log-probabilities are asked for */
    size_t            num_tokens, capacity;
    ApiTop           *tops;
    size_t            num_tops, tops_capacity;
    size_t            text_bytes; /* of the text with calls, so far */
    int64_t           count;      /* tokens of it */
    const char       *reason;     /* as EngineEvent.reason; NULL: it goes on */
    ToolReader        reader;
    /* What a stream has told. */
    size_t sent_content, sent_calls, sent_tokens;
    bool   has_begun, has_told_prompt; /* prompt: its first token's place among log-probabilities */
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

/* The whole answer. */
void api_write(const ApiAnswer *answer, StrBuf *out);
/* Appends the events of a stream, "data: {...}\n\n" each, of what is new of this choice. */
void api_write_parts(const ApiAnswer *answer, ApiChoice *choice, StrBuf *out);
/* Those behind the last part of the last choice. */
void api_write_end(const ApiAnswer *answer, StrBuf *out);
