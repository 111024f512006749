/* Numbers for an op's inputs, as its descriptor says what they hold: for doctor and tests, which run an op by itself. */
#pragma once

#include "ir/sample.h"
#include "ops/ops.h"

/* Input k of the node: floats are normal, integers in [0, range), codes of less than a byte any. The same numbers for the same key. */
void op_draw(const Node *node, int k, int range, uint64_t key, void *data);
/* Makes what the sample masks of input k -inf. */
void op_mask(const Node *node, int k, const OpSample *sample, void *data);

/* A drawn float as what an input holds that bounds each number by itself. */
float op_draw_held(InputHolds holds, float drawn);
