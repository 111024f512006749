/* The parts of a server: serve.c (its life), serve_routes.c (all requests), serve_texts.c (requests for texts). */
#pragma once

#include "serve/api_request.h"
#include "serve/engine.h"
#include "serve/metrics.h"
#include "serve/serve.h"

typedef struct Generation Generation;

struct Serve {
    ServeOptions options;
    InferModel  *infer;
    HttpServer  *http;
    Engine      *engine;
    ApiModel     model;
    StrList      keys;
    Arena        arena;
    bool         is_local; /* bound to an address of this machine alone */
    int64_t      created;  /* seconds since 1970 */
    Metrics      metrics;
    Generation  *generations; /* generations with texts in the engine */
    int64_t      num_texts;   /* texts in the engine */
    int          best;        /* number of log-probabilities beside each token's own that the decoder reports */
    StrBuf       failure;     /* why the device failed; empty: it works */
};

/* A request that is answered now or later, with the facts that are logged and counted at its end. */
typedef struct Call {
    Serve *serve;
    int    route;
    char   method[8], path[64]; /* truncated */
    double begun;               /* when the call began, by clock_seconds */
} Call;

void serve_refused(void *serve, int status, const char *message); /* HttpHandler.refused */

/* serve_request is HttpHandler.request. serve_count counts and logs an answer; serve_reply and serve_refuse send one and count it. tokens:
 * generated tokens of the answer; negative: the answer isn't generated text. */
void serve_request(void *serve, HttpExchange *exchange, const HttpRequest *request);
void serve_count(const Call *call, int status, int64_t tokens);
void serve_reply(const Call *call, HttpExchange *exchange, int status, const char *type, const StrBuf *body);
void serve_refuse(const Call *call, HttpExchange *exchange, int status, const char *message, const char *param, const char *code);
/* Refuses with status_message and with param, code and status of the request; clears the message. */
void serve_refuse_request(const Call *call, HttpExchange *exchange, const ApiRequest *request);

/* Begins a request for texts; the exchange is answered at their end, or in parts as they grow. */
void texts_begin(const Call *call, HttpExchange *exchange, int route, Str body);
void texts_take(void *serve, const EngineEvent *event);                 /* EngineReceiver.take */
void texts_gone(void *serve, HttpExchange *exchange, void *generation); /* HttpHandler.gone */
void texts_drop(Serve *serve);                                          /* frees all generations, after the engine was destroyed */
