/* Several adapters as one, whose change of each matrix is the sum of theirs, each times a weight. */
#pragma once

#include "model/peft.h"

typedef struct WeightedAdapter {
    PeftAdapter adapter;
    double      weight; /* finite, not 0 */
} WeightedAdapter;

/* Writes the folder of such an adapter: A of a layer are the A of all one below the other, B theirs side by side, times weight and scale;
 * in fp32. Beside them are the tokenizer's files that they were trained with. ERR_UNSUPPORTED: one has other tensors than pairs of linear
 * layers; ERR_INVALID: layers that don't fit, or adapters over different formats of a base or with different tokenizers. */
NODISCARD Status peft_combine(const WeightedAdapter *parts, int count, const char *folder);
