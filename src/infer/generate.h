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
} GenerateJob;

/* The text ends after max_tokens, at EOS (which the sink doesn't get), when the sink returns false, or when the cache is full. The session
 * must have programs of the entries prefill and decode. ERR_INVALID: the prompt is empty or doesn't fit the cache. ERR_DIVERGED: the
 * model's logits contain no usable number. */
NODISCARD Status generate(Session *session, const GenerateJob *job);
