/* How many texts a device has room to decode at once. */
#pragma once

#include "infer/infer_model.h"

enum { FIT_MOST_ROWS = 4096 }; /* more aren't looked for */

typedef struct DecodingFit {
    int64_t    rows;                       /* 0: not even one fits */
    int64_t    weights, cache, all, limit; /* bytes, of so many rows, or of one; limit 0: the device's memory isn't known */
    PlanLatent latent;
} DecodingFit;

/* Rows of `context` tokens, prompt and text together, found by planning on infer->device. infer->options name the model alone. */
NODISCARD Status fit_decoding(InferModel *infer, int64_t context, DecodingFit *out);

/* A line for people, and one more for each way in which latents are kept. */
void fit_print_decoding(const DecodingFit *fit, int64_t context, StrBuf *out);
