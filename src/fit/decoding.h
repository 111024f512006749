/* How many texts a device has room to decode at once. */
#pragma once

#include "infer/infer_model.h"

enum { FIT_MOST_ROWS = 4096 }; /* more rows than this aren't tried */

typedef struct DecodingFit {
    int64_t    rows;                       /* 0: not even one row fits */
    int64_t    weights, cache, all, limit; /* bytes for max(rows, 1) rows; limit 0: the device's memory is unknown */
    PlanLatent latent;
} DecodingFit;

/* Finds how many rows of `context` tokens (prompt and generated text together) fit, by planning on infer->device. Replaces the programs
 * that infer->options request. */
NODISCARD Status fit_decoding(InferModel *infer, int64_t context, DecodingFit *out);

/* Appends a line for people, and one for each way in which the KV cache holds latents (PlanLatent). */
void fit_print_decoding(const DecodingFit *fit, int64_t context, StrBuf *out);
