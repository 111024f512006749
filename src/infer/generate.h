/* One text after one prompt, by a decoder of its own. */
#pragma once

#include "infer/decoder.h"
#include "text/tokenizer.h"

/* Gets each token as it is chosen; false stops. */
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
    const float  **seen; /* NULL, or gets the logits that the next token of the sink was chosen by */
} GenerateJob;

typedef struct GenerateStats {
    int64_t generated;    /* tokens handed out; EOS isn't */
    bool    stopped;      /* at EOS or by the sink */
    bool    context_full; /* the cache ended before max_tokens */
} GenerateStats;

/* The session has programs of entries prefill and decode. ERR_INVALID when the prompt doesn't fit into the cache, ERR_DIVERGED when the
 * model gives no numbers to choose by. */
NODISCARD Status generate(Session *session, const GenerateJob *job, GenerateStats *out_stats);
