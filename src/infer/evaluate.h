/* Losses of a text: -ln p of every token after the first. A text longer than the model's context is read in windows that overlap by half.
 * So every token, except those of the first window, sees at least half a context. */
#pragma once

#include "infer/infer_model.h"

/* Chooses the shape of the eval program for texts of up to longest_ids ids, and starts the session. context 0: the model's own, at most
 * 4096. */
NODISCARD Status evaluate_start(InferModel *infer, size_t longest_ids, int64_t context);

/* Writes (count - 1) losses in nats; count >= 2. */
NODISCARD Status evaluate_ids(InferModel *infer, const int32_t *ids, size_t count, float *losses);
