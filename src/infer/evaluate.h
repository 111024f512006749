/* Losses of a text: -ln p of every token after the first. Longer texts than the model's context are read in windows that
 * overlap by half, so that every token but the first window's sees at least half a context. */
#pragma once

#include "infer/infer_model.h"

/* Chooses the eval program's shapes for texts of up to longest_ids ids, context 0: the model's (at most 4096), and starts the
 * session. */
NODISCARD Status evaluate_start(InferModel *infer, size_t longest_ids, int64_t context);

/* losses (count - 1), natural logarithm; count >= 2. */
NODISCARD Status evaluate_ids(InferModel *infer, const int32_t *ids, size_t count, float *losses);
