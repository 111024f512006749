/* Generates one text after one prompt, with a decoder of its own. */
#pragma once

#include "infer/decoder.h"
#include "text/tokenizer.h"

/* Receives each token as it is chosen; false stops. */
typedef bool (*GenerateSink)(void *context, int32_t id);

typedef struct GenerateJob {
    const int32_t *prompt;
    size_t         prompt_len; /* at least 1 */
    int64_t        max_tokens;
    SampleOptions  sample;
    const int32_t *eos;
    int            num_eos;
    GenerateSink   sink;
    void          *context;
    const float  **seen; /* NULL, or receives the logits that the sink's next token was chosen by */
} GenerateJob;

typedef struct GenerateStats {
    int64_t generated;    /* tokens given to the sink; EOS isn't */
    bool    stopped;      /* ended by EOS or by the sink */
    bool    context_full; /* the cache was full before max_tokens */
} GenerateStats;

/* The session must have programs of the entries prefill and decode. ERR_INVALID: the prompt doesn't fit the cache. ERR_DIVERGED: the
 * model's logits contain no usable number. */
NODISCARD Status generate(Session *session, const GenerateJob *job, GenerateStats *out_stats);
