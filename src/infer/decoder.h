/* Decoder: generates many texts at once with one model. Requests wait in a queue. A request that begins takes a place (a row of the decode
 * programs) and pages of the KV cache. It begins when there are pages for its prompt, and takes more pages as its text grows. If no page is
 * free, the youngest request is preempted: it returns to the queue and is resumed later. A free place is taken at once by the next request.
 * A text's tokens and log-probabilities don't depend on the requests beside it, on its place, or on preemption. The exception is split_k:
 * decoded tokens then have other bits than tokens read as a prompt. */
#pragma once

#include "passes/compile.h"
#include "run/session.h"

typedef struct SampleOptions {
    double         temperature; /* 0: always the likeliest token */
    int64_t        top_k;       /* 0: all tokens */
    double         top_p;       /* 1: all tokens */
    double         min_p;       /* 0: all tokens; else only those with at least this times the likeliest token's probability */
    double         repetition;  /* 0, 1: none; divides positive and multiplies negative scores of tokens that occur in prompt or text */
    double         presence, frequency; /* 0: none; subtracted from scores of tokens of the text: presence once, frequency per occurrence */
    const int32_t *bias_ids;            /* biases[i] is added to the score of bias_ids[i]; -INFINITY bans the token */
    const float   *biases;
    int            num_biases;
    uint64_t       seed, request; /* with `number` and the token's position: the random key of a draw */
    uint32_t       number;
} SampleOptions;

typedef struct DecodeToken {
    int32_t        id;
    float          logprob;       /* log-probability under the model's distribution */
    float          drawn_logprob; /* log-probability under the distribution that it was drawn from */
    const int32_t *best_ids;      /* (DecoderOptions.best) the likeliest tokens of the model's distribution */
    const float   *best_logprobs;
} DecodeToken;

typedef enum DecodeEnd {
    DECODE_AT_STOP,    /* a stop id of the request was chosen; `token` isn't called for that id */
    DECODE_AT_LENGTH,  /* the text has max_tokens tokens */
    DECODE_AT_CONTEXT, /* prompt and text fill the context */
    DECODE_BY_CALLER,  /* `token` returned false, or the request was cancelled */
    DECODE_FAILED,     /* the logits contain no usable number: status_message explains it during `end` */
} DecodeEnd;

typedef struct DecodeRequest {
    const int32_t *prompt;     /* copied */
    size_t         prompt_len; /* at least 1 */
    size_t         given;      /* the last `given` tokens of the prompt are decoded one by one and reported like tokens of the text */
    int64_t        max_tokens; /* most tokens after the prompt; at least 1, or 0 if tokens are given */
    SampleOptions  sample;     /* its lists are copied */
    const int32_t *stops;      /* copied */
    int            num_stops;
    void          *context;
    bool (*token)(void *context, const DecodeToken *token); /* false ends the text */
    void (*end)(void *context, DecodeEnd end);              /* the last call for this request; it may submit new requests */
    int adapter;                                            /* index into CompileOptions.row_adapters, from 1; 0: no adapter */
    /* NULL: any token may be chosen. Else called before each token is chosen, and after `token` was called for all earlier tokens. It sets
     * the bits of the ids that may be chosen, stop ids included: id i is bit i % 32 of words[i / 32], and all bits are 0 before. A row with
     * a guide gets a token only in every other run. */
    void (*guide)(void *context, uint32_t *words);
} DecodeRequest;

typedef struct DecoderOptions {
    int64_t rows;      /* number of places */
    int64_t context;   /* most tokens of a request's prompt and text together */
    int64_t prompt;    /* tokens of the longest expected prompt, which bounds the tokens of a prefill run; 0: unknown */
    int64_t pages;     /* pages of the KV cache for all rows; 0: as many as `rows` rows of `context` tokens need */
    int     best;      /* how many of the likeliest tokens are reported, with log-probabilities, beside each chosen token */
    bool    penalties; /* requests may have repetition, presence or frequency penalties */
    int     biases;    /* most biases of a request */
    bool    guides;    /* requests may have guides */
} DecoderOptions;

/* Adds the programs that a decoder needs on this device to `options`. choices: only ids below it are chosen; 0: all ids of the head. */
void decoder_want(CompileOptions *options, const Device *device, const DecoderOptions *want, int64_t choices);

typedef struct Decoder Decoder;

/* The session must have programs of the entries prefill and decode (decoder_want). */
NODISCARD Status decoder_create(Session *session, Decoder **out_decoder);
void             decoder_read_first(Decoder *decoder); /* from now on no row decodes before all prompts were read */
void             decoder_destroy(Decoder *decoder);    /* requests that haven't ended get no `end` */

/* Adds a request to the queue. ERR_INVALID says why it can't be decoded: an empty prompt or one longer than the context, ids beyond the
 * vocabulary, more biases than the options allow, penalties or a guide that the options don't allow, values out of range, more pages than
 * the cache has, an adapter that doesn't exist. out_handle may be NULL. */
NODISCARD Status decoder_submit(Decoder *decoder, const DecodeRequest *request, uint64_t *out_handle);
void             decoder_cancel(Decoder *decoder, uint64_t handle); /* unknown or ended handles are fine */

/* Does one run: a chunk of one prompt, several short prompts, or one more token of every row. Then reports the tokens of completed runs. */
NODISCARD Status decoder_step(Decoder *decoder);
const Program   *decoder_ran(const Decoder *decoder);           /* the program of the last step; NULL: the step ran none */
bool             decoder_is_busy(const Decoder *decoder);       /* a request waits or runs, or a run isn't reported yet */
int64_t          decoder_num_waiting(const Decoder *decoder);   /* requests in the queue, without a place */
int64_t          decoder_pages_free(const Decoder *decoder);    /* pages of the cache that no request holds */
int64_t          decoder_num_preempted(const Decoder *decoder); /* preemptions since the decoder was created */
