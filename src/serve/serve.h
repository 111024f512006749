/* An OpenAI-compatible server of one model. HTTP (http_server.h) runs on the caller's thread, the model on a thread of its own (engine.h).
 */
#pragma once

#include "infer/infer_model.h"
#include "serve/http_server.h"

enum { SERVE_PORT = 8000, SERVE_MOST_CONTEXT = 8192, SERVE_PLACES_CPU = 16, SERVE_PLACES_GPU = 64 };

typedef struct ServeOptions {
    const char    *host;
    int            port;         /* 0: any free one */
    const char    *name;         /* name of the model; adapters have their own names */
    const char    *api_key_file; /* NULL: requests need no key */
    const StrList *hosts;        /* names that a Host field may have, besides names of this machine */
    HttpLimits     http;
    int64_t        places, context, pages; /* as in DecoderOptions. places 0: chosen by the device; context 0: the model's, at most
                                              SERVE_MOST_CONTEXT; pages 0: as many as fit, but no more than all places need */
    int64_t max_tokens;                    /* most tokens that a request may ask for; 0: the context */
    int64_t max_queue;                     /* texts that may wait for a place; further ones get 429 */
    bool    logs_requests;                 /* logs prompts and answers too */
} ServeOptions;

/* localhost:8000, 1,024 texts in the queue, http_default_limits. */
ServeOptions serve_defaults(void);

typedef struct Serve Serve;

/* Reads the keys and binds the port: clients that connect wait until serve_run. The arguments are borrowed. infer must have its adapters
 * (infer_use_adapters) and not be started. */
NODISCARD Status serve_open(InferModel *infer, const ServeOptions *options, Serve **out);
/* Loads the model; logs what fits in memory, and adapters that change nothing. */
NODISCARD Status serve_start(Serve *serve);
/* Serves until http_server_finish or http_server_stop, or until the device fails. */
NODISCARD Status serve_run(Serve *serve);
void             serve_destroy(Serve *serve); /* NULL is fine */
HttpServer      *serve_http(const Serve *serve);
