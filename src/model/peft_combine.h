/* Combines several adapters into one, which changes each matrix by the weighted sum of their changes. */
#pragma once

#include "model/peft.h"

typedef struct WeightedAdapter {
    PeftAdapter adapter;
    double      weight; /* finite, not 0 */
} WeightedAdapter;

/* Writes the folder of the combined adapter, in fp32. A layer's A is all the A's one below the other; its B is all the B's side by side,
 * times weight and scale. The folder also gets the tokenizer's files that the adapters were trained with. ERR_UNSUPPORTED: an adapter has
 * tensors other than pairs of linear layers. ERR_INVALID: layers don't fit, or adapters are over different formats of a base, or have
 * different tokenizers. */
NODISCARD Status peft_combine(const WeightedAdapter *parts, int count, const char *folder);
