/* Shared by the files that build, check, print and parse graphs. */
#pragma once

#include "ir/op.h"

/* The attributes of an op at their defaults, in the arena; NULL when it has none. */
void *attrs_defaults(Arena *arena, const OpDef *op);

/* Checks the inputs and computes every output's type, wanted or not. */
Status node_infer(const Node *node, TensorType out_types[NODE_MAX_OUT]);
