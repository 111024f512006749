/* Text from a prompt: prefill in chunks, then a token at a time from the KV cache. */
#pragma once

#include "infer/sampler.h"
#include "run/session.h"
#include "text/tokenizer.h"

/* Gets each token as it is chosen; false stops. */
typedef bool (*GenerateSink)(void *context, int32_t id);

typedef struct GenerateJob {
    const int32_t *prompt;
    size_t         prompt_len; /* at least 1 */
    int64_t        max_tokens;
    int64_t        vocab_size; /* ids below it are chosen: embeddings are often longer than the vocabulary; 0: all */
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

/* The session has PREFILL and DECODE programs for batch 1. ERR_INVALID when the prompt doesn't fit into the cache. */
NODISCARD Status generate(Session *session, const GenerateJob *job, GenerateStats *out_stats);
