/* Choosing the next token from logits. */
#pragma once

#include "infer/decoder.h"

typedef struct Sampler Sampler; /* scratch for one vocabulary */
Sampler               *sampler_create(const SampleOptions *options, int64_t vocab_size);
void                   sampler_destroy(Sampler *sampler); /* NULL is fine */

int64_t sampler_vocab_size(const Sampler *sampler);

/* Of logits without NaN the token for `position`: a pure function of logits, options and position. Of equal logits the first wins. */
int32_t sampler_pick(Sampler *sampler, const float *logits, int64_t position);
