/* What a request for texts asks for, read of its JSON and checked. Whatever is wrong is said with the field's name. */
#pragma once

#include "config/config.h"
#include "infer/infer_model.h"
#include "serve/forced_call.h"

/* Routes: /v1/completions, /v1/chat/completions, /tokenize, /detokenize; and several of them. */
enum { API_TEXT = 1, API_CHAT = 2, API_TOKENS = 4, API_IDS = 8, API_BOTH = API_TEXT | API_CHAT };
enum { API_TEXT_TOKENS = API_TEXT | API_TOKENS, API_CHAT_TOKENS = API_CHAT | API_TOKENS, API_ALL = API_BOTH | API_TOKENS | API_IDS };

/* What all requests are read with. */
typedef struct ApiModel {
    InferModel       *infer;
    TokenizerScratch *scratch;    /* of the thread that reads requests */
    Template         *tmpl;       /* NULL: the model has none */
    const char       *name;       /* that of the base */
    int64_t           context;    /* most tokens of a prompt and its text */
    int64_t           max_tokens; /* most that a request may ask for; 0: as the context has room */
} ApiModel;

typedef struct ApiPrompt {
    size_t first, num; /* of ApiRequest.ids */
    Str    text;       /* as it was sent, borrowed while the request is read; data NULL: as ids */
    /* Where it is echoed (api_echo.h). */
    Str       echo;    /* its text */
    uint32_t *offsets; /* (num) characters of it before each token */
} ApiPrompt;

typedef struct ApiRequest {
    Arena         arena; /* of all that is here */
    int           route;
    const char   *model;   /* as it was asked for */
    int           adapter; /* as DecodeRequest.adapter */
    TokenIds      ids;     /* of all prompts, one after the other */
    ApiPrompt    *prompts;
    int           num_prompts;
    int64_t       num;                               /* texts of each prompt */
    int64_t       max_tokens, max_completion_tokens; /* -1: not said */
    int64_t       seed, top;                         /* top: log-probabilities beside each token's */
    bool          wants_logprobs, streams, tells_usage, echoes, ignore_eos;
    bool          calls_tools; /* what looks like a call of a tool is one */
    bool          wants_json;  /* the text is a JSON object */
    ForcedCall    forced;      /* the text is a call of one of these */
    SampleOptions sample;
    StrList       stops;
    bool          has_seed;
    /* Where it is wrong. */
    const char *param;  /* the field; NULL: none */
    const char *code;   /* in OpenAI's words; NULL: none */
    int         status; /* of HTTP */
} ApiRequest;

/* Reads a body for this route. status_message says what is wrong, and `param`, `code` and `status` of *out; api_request_deinit frees in
 * every case. */
NODISCARD Status api_read(const ApiModel *model, int route, Str body, ApiRequest *out);
void             api_request_deinit(ApiRequest *request);

/* The ids of {"prompt": text}, with "add_special_tokens" (true), or of {"messages": [...]} with what a chat's template takes, of any
 * length; the same of {"tokens": [...]}. Both may name the model. */
NODISCARD Status api_read_tokenize(const ApiModel *model, Str body, ApiRequest *out);
NODISCARD Status api_read_detokenize(const ApiModel *model, Str body, ApiRequest *out);

/* 0: the base; an adapter's, from 1; -1: there is no such model. */
int api_find_model(const ApiModel *model, Str name);
