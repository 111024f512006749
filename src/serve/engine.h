/* The engine: a thread that owns the decoder, receives texts to make, and reports each token and each end. Events of one step are collected
 * and delivered in order by one call on the receiver's own thread (EngineReceiver.post). A text's tokens are, to the bit, those that
 * `surogate generate` makes from the same prompt and settings. */
#pragma once

#include "config/config.h"
#include "infer/infer_model.h"

typedef struct Engine Engine;

/* One text to make. Everything that it points to is borrowed until its ENGINE_END was delivered. */
typedef struct EngineText {
    const int32_t *prompt;
    size_t         prompt_len, given; /* given: as DecodeRequest.given */
    int64_t        max_tokens;        /* as DecodeRequest.max_tokens */
    SampleOptions  sample;
    const StrList *stops; /* stop texts */
    bool           ignore_eos;
    int            adapter;    /* as DecodeRequest.adapter */
    int            top;        /* number of log-probabilities reported beside each token's own */
    bool           wants_json; /* the text must be one JSON object (infer/json_guide.h) */
    const Str     *leads;      /* (num_leads) the JSON object follows one of these texts */
    int            num_leads;
    bool           calls_tools; /* the text of tool-call marks is kept (serve/tool_calls.h) */
    void          *user;        /* passed with each event */
} EngineText;

typedef enum EngineEventKind { ENGINE_TOKEN, ENGINE_END } EngineEventKind;

typedef struct EngineEvent {
    EngineEventKind kind;
    void           *user;
    Str             text; /* text settled since the event before: whole characters that won't change, no part of a stop text */
    /* ENGINE_TOKEN. */
    int32_t        id;
    float          logprob;
    size_t         at;       /* bytes of the text before this token */
    bool           is_given; /* a token of the prompt */
    bool           is_last;  /* an end token, which is no part of the text */
    int            top;
    const int32_t *top_ids;
    const float   *top_logprobs;
    /* ENGINE_END. */
    const char *reason;     /* eos, stop, length or context; stopped: it was cancelled; NULL: it failed */
    const char *error;      /* why it failed; NULL: it didn't */
    bool        is_refused; /* the error is in the request, not in the model */
} EngineEvent;

typedef struct EngineReceiver {
    void *context;
    void (*post)(void *context, void (*call)(void *), void *argument); /* engine's thread: makes the receiver's call call(argument) */
    void (*take)(void *context, const EngineEvent *event);             /* receiver's thread; the event is valid until take returns */
} EngineReceiver;

typedef struct EngineStats {
    int64_t waiting, running, preempted; /* texts without and with a row of the decoder; how often a text lost its row */
    int64_t pages, pages_free;           /* pages of the KV cache; how many of them are free */
    bool    has_failed;                  /* the device failed: every text ends with an error from now on */
} EngineStats;

/* Starts the thread, and a session for these options unless the running session suits them. infer's session belongs to the engine until
 * engine_destroy. */
NODISCARD Status engine_create(InferModel *infer, const DecoderOptions *options, const EngineReceiver *receiver, Engine **out);
/* Ends the thread: it posts nothing more, and unfinished texts get no ENGINE_END. Calls that were posted may still be made. NULL is fine.
 */
void engine_stop(Engine *engine);
void engine_destroy(Engine *engine); /* stops it too. Posted calls must not be made any more. NULL is fine */

/* engine_submit, engine_cancel and engine_stats are called on the receiver's thread. *text is copied; the text ends with exactly one
 * ENGINE_END. Returns the text's handle. */
uint64_t engine_submit(Engine *engine, const EngineText *text);
/* Makes the text end soon; it may have ended already. */
void        engine_cancel(Engine *engine, uint64_t handle);
EngineStats engine_stats(Engine *engine);
