/* Named scalars: numbers that a step reports besides loss and norm. A scalar is an output f32 (1) of the module other than "loss", or a row
 * of the table in scalars.c, which computes it in the graph. To add a scalar, add a row. */
#pragma once

#include "passes/pass.h"

/* Makes the scalars that the options ask for, and all outputs of an objective. out[i]: the value of plan->scalars[i], which is filled in.
 * The graph must still have all outputs of its module. ERR_INVALID: the model has no scalar of a name. */
NODISCARD Status scalars_make(const PassContext *context, Graph *graph, Value *out[MOST_SCALARS]);
/* The name of the state in which a scalar adds up over micro-steps. */
const char *scalar_state(Arena *arena, const char *name);
