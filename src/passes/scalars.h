/* Named scalars: numbers that a step tells beside loss and norm. They are outputs f32 (1) that the module has beside "loss", or rows of the
 * table in scalars.c, which makes them out of the graph. A new one is a row there. */
#pragma once

#include "passes/pass.h"

/* Those that the options ask for, and all that an objective tells: out[i] is plan->scalars[i], which is filled in. The graph still has all
 * outputs of its module. ERR_INVALID for a name that the model doesn't have. */
NODISCARD Status scalars_make(const PassContext *context, Graph *graph, Value *out[MOST_SCALARS]);
/* The state in which micro-steps of a scalar add up. */
const char *scalar_state(Arena *arena, const char *name);
