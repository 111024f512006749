/* The model's thread: it owns the decoder, takes texts that are to be made, and tells of each token and end. What it tells is collected
 * while a step runs and handed over in one call a step, on the receiver's own thread (EngineReceiver.post), in order. A text's tokens are
 * those that `surogate generate` makes of the same prompt and settings, to the bit. */
#pragma once

#include "config/config.h"
#include "infer/infer_model.h"

typedef struct Engine Engine;

/* One text to make. Everything that it points to is borrowed until its end was told. */
typedef struct EngineText {
    const int32_t *prompt;
    size_t         prompt_len, given; /* given: as DecodeRequest.given */
    int64_t        max_tokens;        /* as DecodeRequest.max_tokens */
    SampleOptions  sample;
    const StrList *stops; /* texts */
    bool           ignore_eos;
    int            adapter;    /* as DecodeRequest.adapter */
    int            top;        /* log-probabilities that are told beside each token's */
    bool           wants_json; /* it is one JSON object (infer/json_guide.h) */
    const Str     *leads;      /* (num_leads) which begins behind one of these texts */
    int            num_leads;
    bool           calls_tools; /* marks of calls of tools stay in its text (serve/tool_calls.h) */
    void          *user;        /* comes with each event */
} EngineText;

typedef enum EngineEventKind { ENGINE_TOKEN, ENGINE_END } EngineEventKind;

typedef struct EngineEvent {
    EngineEventKind kind;
    void           *user;
    Str             text; /* that is there to stay since the last event: whole characters, and no part of a stop text */
    /* Of a token. */
    int32_t        id;
    float          logprob;
    size_t         at;       /* bytes of text before it */
    bool           is_given; /* a token of the prompt */
    bool           is_last;  /* one that ends texts: no part of this one */
    int            top;
    const int32_t *top_ids;
    const float   *top_logprobs;
    /* Of the end. */
    const char *reason;     /* eos, stop, length or context; stopped: it was cancelled; NULL: it failed */
    const char *error;      /* why; NULL: it didn't fail */
    bool        is_refused; /* the request was wrong, not the model */
} EngineEvent;

typedef struct EngineReceiver {
    void *context;
    void (*post)(void *context, void (*call)(void *), void *argument); /* from the engine's thread: has the receiver's thread call */
    void (*take)(void *context, const EngineEvent *event);             /* there; valid until it returns */
} EngineReceiver;

typedef struct EngineStats {
    int64_t waiting, running, preempted; /* texts without a place, with one; how often one lost its place */
    int64_t pages, pages_free;           /* of the cache */
    bool    has_failed;                  /* the device did: every text ends with an error from now on */
} EngineStats;

/* Starts the session for these options unless the one that is there serves, and the thread. infer's session is the engine's until
 * engine_destroy. */
NODISCARD Status engine_create(InferModel *infer, const DecoderOptions *options, const EngineReceiver *receiver, Engine **out);
/* Ends the thread: it posts nothing more, and texts that haven't ended get no end. What it posted may still be called. NULL is fine. */
void engine_stop(Engine *engine);
void engine_destroy(Engine *engine); /* stops it, too; nothing that it posted may be called from now on. NULL is fine */

/* From the receiver's thread. The text is copied; it ends with exactly one ENGINE_END. Returns its handle. */
uint64_t engine_submit(Engine *engine, const EngineText *text);
/* It ends soon; it is fine if it has ended. */
void        engine_cancel(Engine *engine, uint64_t handle);
EngineStats engine_stats(Engine *engine);
