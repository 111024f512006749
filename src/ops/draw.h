/* Values for an op's inputs, of the kinds that its descriptor says they hold: for doctor and tests, which run an op by itself. */
#pragma once

#include "ir/sample.h"
#include "ops/ops.h"

/* Draws input k of the node: floats are normally distributed, integers are in [0, range), codes of less than a byte are arbitrary. The same
 * key gives the same values. */
void op_draw(const Node *node, int k, int range, uint64_t key, void *data);
/* Sets the elements of input k that the sample masks to -inf. */
void op_mask(const Node *node, int k, const OpSample *sample, void *data);

/* Turns a drawn float into a value that an input of this kind may hold, if the kind limits each value by itself. */
float op_draw_held(InputHolds holds, float drawn);
