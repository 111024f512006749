/* A request for texts, read from its JSON and checked. Messages of errors name the field. */
#pragma once

#include "config/config.h"
#include "infer/infer_model.h"
#include "serve/forced_call.h"

/* The routes /v1/completions, /v1/chat/completions, /tokenize and /detokenize as bits, and sets of them. */
enum { API_TEXT = 1, API_CHAT = 2, API_TOKENS = 4, API_IDS = 8, API_BOTH = API_TEXT | API_CHAT };
enum { API_TEXT_TOKENS = API_TEXT | API_TOKENS, API_CHAT_TOKENS = API_CHAT | API_TOKENS, API_ALL = API_BOTH | API_TOKENS | API_IDS };

/* The parts of the server that reading a request needs. */
typedef struct ApiModel {
    InferModel       *infer;
    TokenizerScratch *scratch;    /* used only by the thread that reads requests */
    Template         *tmpl;       /* NULL: the model has none */
    const char       *name;       /* name of the base model */
    int64_t           context;    /* most tokens of a prompt and its answer together */
    int64_t           max_tokens; /* most tokens that a request may ask for; 0: as many as the context has room for */
} ApiModel;

typedef struct ApiPrompt {
    size_t first, num; /* this prompt's range in ApiRequest.ids */
    Str    text;       /* the prompt as it was sent, borrowed while the request is read; data NULL: the prompt was sent as ids */
    /* Set if the prompt is echoed (api_echo.h). */
    Str       echo;    /* the echoed text */
    uint32_t *offsets; /* (num) characters of the echo before each token */
} ApiPrompt;

typedef struct ApiRequest {
    Arena         arena; /* owns all that the request points to */
    int           route;
    const char   *model;   /* the name that the request gave */
    int           adapter; /* as DecodeRequest.adapter */
    TokenIds      ids;     /* ids of all prompts, one after another */
    ApiPrompt    *prompts;
    int           num_prompts;
    int64_t       num;                               /* number of texts to make from each prompt */
    int64_t       max_tokens, max_completion_tokens; /* -1: not given */
    int64_t       seed, top;                         /* top: number of log-probabilities beside each token's own */
    bool          wants_logprobs, streams, tells_usage, echoes, ignore_eos;
    bool          calls_tools; /* text in the form of a tool call is read as a call */
    bool          wants_json;  /* the text is a JSON object */
    ForcedCall    forced;      /* the text must be a call of one of these functions */
    SampleOptions sample;
    StrList       stops;
    bool          has_seed;
    /* Set if the request is wrong. */
    const char *param;  /* the wrong field; NULL: the error belongs to no field */
    const char *code;   /* OpenAI's code of the error; NULL: none */
    int         status; /* HTTP status */
} ApiRequest;

/* Reads the body of a request to this route. On failure status_message says what is wrong, and param, code and status of *out are set. The
 * caller frees *out with api_request_deinit in every case. */
NODISCARD Status api_read(const ApiModel *model, int route, Str body, ApiRequest *out);
void             api_request_deinit(ApiRequest *request);

/* Set out->ids, which have no limit; a body may name the model. api_read_tokenize encodes {"prompt": text, "add_special_tokens": true by
 * default}, or {"messages": [...]} with the fields that a chat's template takes. api_read_detokenize reads {"tokens": [...]}. */
NODISCARD Status api_read_tokenize(const ApiModel *model, Str body, ApiRequest *out);
NODISCARD Status api_read_detokenize(const ApiModel *model, Str body, ApiRequest *out);

/* Index of a model by its name. 0: the base; from 1: an adapter; -1: there is no such model. */
int api_find_model(const ApiModel *model, Str name);
