/* Decoder: many texts at once over one model. Requests wait in a queue; a request that begins takes a place (a row of the decode programs)
 * and pages of the cache; a place that becomes free is taken by the next one at once. A request begins when there are pages for its prompt,
 * and takes more as its text grows. Where none is free, the request that came last is preempted: it waits in the queue, and goes on later.
 * A text's tokens and log-probabilities don't depend on what is decoded beside it, on the place that it has, or on being preempted (but
 * with split_k, whose decoded tokens have other bits than those that are read). */
#pragma once

#include "passes/compile.h"
#include "run/session.h"

typedef struct SampleOptions {
    double         temperature;         /* 0: the likeliest token */
    int64_t        top_k;               /* 0: all */
    double         top_p;               /* 1: all */
    double         min_p;               /* 0: all; else of the likeliest token's probability */
    double         repetition;          /* 1: none; scores of tokens of prompt and text are divided by it, or multiplied where negative */
    double         presence, frequency; /* 0: none; taken from scores of tokens of the text, once or as often as they occur */
    const int32_t *bias_ids;            /* scores of these get biases added; -INFINITY: a banned token */
    const float   *biases;
    int            num_biases;
    uint64_t       seed, request; /* with the number of the sample and the position: the key of a draw */
    uint32_t       number;
} SampleOptions;

typedef struct DecodeToken {
    int32_t        id;
    float          logprob;       /* of the model's distribution */
    float          drawn_logprob; /* of the distribution that it was drawn from */
    const int32_t *best_ids;      /* the likeliest of the model's distribution, as many as DecoderOptions.best */
    const float   *best_logprobs;
} DecodeToken;

typedef enum DecodeEnd {
    DECODE_AT_STOP,    /* one of its stop ids was chosen, which isn't told */
    DECODE_AT_LENGTH,  /* max_tokens */
    DECODE_AT_CONTEXT, /* its row of the cache is full */
    DECODE_BY_CALLER,  /* `token` returned false, or it was cancelled */
    DECODE_FAILED,     /* its logits hold no number to choose by: status_message says so in `end` */
} DecodeEnd;

typedef struct DecodeRequest {
    const int32_t *prompt;     /* copied */
    size_t         prompt_len; /* at least 1 */
    size_t        given; /* the last so many tokens of the prompt are told as a text's are, with their log-probabilities; read one by one */
    int64_t       max_tokens; /* behind the prompt; at least 1, or 0 where some are given */
    SampleOptions sample;     /* its lists are copied */
    const int32_t *stops;     /* copied */
    int            num_stops;
    void          *context;
    bool (*token)(void *context, const DecodeToken *token); /* false ends it */
    void (*end)(void *context, DecodeEnd end);              /* the last call for this request; new ones may be submitted in it */
    int adapter;                                            /* the one of CompileOptions.row_adapters, from 1; 0: none of them */
    /* NULL: any token may come. Else called before each token is chosen, after `token` was called for all before it: sets the bit of each
     * id that may come, stop ids among them (id i: bit i % 32 of words[i / 32]; all are 0 before). The row has a token every other run. */
    void (*guide)(void *context, uint32_t *words);
} DecodeRequest;

typedef struct DecoderOptions {
    int64_t rows;      /* places */
    int64_t context;   /* most tokens of prompt and text together of one request */
    int64_t prompt;    /* the longest prompt that is expected: how many tokens a run of prefill takes follows from it; 0: unknown */
    int64_t pages;     /* of the cache, all rows together; 0: as many as `rows` rows of `context` tokens need */
    int     best;      /* most log-probabilities beside the chosen one that a request may ask for */
    bool    penalties; /* requests may have repetition, presence or frequency */
    int     biases;    /* most biases of a request */
    bool    guides;    /* requests may have a guide */
} DecoderOptions;

/* Asks for the programs that a decoder needs on this device. choices: ids below it are chosen; 0: all that the head has. */
void decoder_want(CompileOptions *options, const Device *device, const DecoderOptions *want, int64_t choices);

typedef struct Decoder Decoder;

/* The session has programs of entries prefill and decode (decoder_want). */
NODISCARD Status decoder_create(Session *session, Decoder **out_decoder);
void             decoder_read_first(Decoder *decoder); /* from now on no row decodes before all prompts are read */
void             decoder_destroy(Decoder *decoder);    /* what isn't finished gets no `end` */

/* Puts a request into the queue. ERR_INVALID, said exactly, where it can't be decoded: an empty prompt or one longer than the context, ids
 * beyond the vocabulary, more biases or log-probabilities than were asked for, penalties where none were, numbers out of range, more pages
 * than the cache has, an adapter that isn't there. */
NODISCARD Status decoder_submit(Decoder *decoder, const DecodeRequest *request, uint64_t *out_handle);
void             decoder_cancel(Decoder *decoder, uint64_t handle); /* unknown or ended handles are fine */

/* One run: a chunk of one prompt, several short prompts, or one more token of every row. Tokens of the run before it are told. */
NODISCARD Status decoder_step(Decoder *decoder);
const Program   *decoder_ran(const Decoder *decoder);           /* which program the last step ran; NULL: none */
bool             decoder_is_busy(const Decoder *decoder);       /* something is queued, runs or waits to be told */
int64_t          decoder_num_waiting(const Decoder *decoder);   /* queued, without a place */
int64_t          decoder_pages_free(const Decoder *decoder);    /* pages of the cache that no request has */
int64_t          decoder_num_preempted(const Decoder *decoder); /* how often a request was preempted, since it was created */
