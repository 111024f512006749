/* What a server is made of: serve.c (its life), serve_routes.c (requests), serve_texts.c (those for texts). */
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
    bool         is_local; /* bound to this machine's own names alone */
    int64_t      created;  /* seconds since 1970 */
    Metrics      metrics;
    Generation  *generations; /* that have texts in the engine */
    int64_t      num_texts;   /* in the engine */
    int          best;        /* log-probabilities beside each token's that the decoder tells */
    StrBuf       failure;     /* why the device failed; empty: it didn't */
};

/* A request that is answered now or later: what is said of it at its end. */
typedef struct Call {
    Serve *serve;
    int    route;
    char   method[8], path[64]; /* cut */
    double begun;               /* of clock_seconds */
} Call;

void serve_refused(void *serve, int status, const char *message); /* HttpHandler.refused */

/* HttpHandler.request, and what all answers end with. tokens: of its texts; negative: it has none. */
void serve_request(void *serve, HttpExchange *exchange, const HttpRequest *request);
void serve_count(const Call *call, int status, int64_t tokens);
void serve_reply(const Call *call, HttpExchange *exchange, int status, const char *type, const StrBuf *body);
void serve_refuse(const Call *call, HttpExchange *exchange, int status, const char *message, const char *param, const char *code);
/* By status_message and what the request says of it; clears the message. */
void serve_refuse_request(const Call *call, HttpExchange *exchange, const ApiRequest *request);

/* Takes a request for texts; the exchange is answered at their end, or as they grow. */
void texts_begin(const Call *call, HttpExchange *exchange, int route, Str body);
void texts_take(void *serve, const EngineEvent *event);                 /* EngineReceiver.take */
void texts_gone(void *serve, HttpExchange *exchange, void *generation); /* HttpHandler.gone */
void texts_drop(Serve *serve);                                          /* frees what is left, once the engine has gone */
