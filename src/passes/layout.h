/* The layout that programs of a session share. */
#pragma once

#include "passes/compile.h"

enum { PLACE_ALIGN = 256 }; /* bytes: what vector loads, cuBLASLt and cuDNN ask for at most */

int64_t layout_align(int64_t n, int64_t to);

/* Of all chunks that are gathered whole for a step, the one that is read first: the optimizer's program gathers it as soon as it is
 * updated, beside the other updates, so that the step that follows begins at once. NULL: there is none. */
const Chunk *layout_first_chunk(const Plan *plan, const Bucket **out_bucket);

/* A parameter that is placed by itself: one that isn't packed, or the memory of packed ones, which are its members. */
bool layout_is_whole(const Value *value);
/* The parameters that such a value consists of, one after the other: itself, if it is one, else those of its members that are. `last`: NULL
 * for the first. NULL: there is no further one; of codes or scales there is none. */
const Value *layout_next_param(const Value *whole, const Value *last);
/* The first of them. */
const Param *layout_first_param(const Value *whole);

/* Where such a value waits. */
Space layout_space(const CompileOptions *options, const Value *whole);
/* Where its gradient waits between micro-steps. */
Space layout_grad_space(const CompileOptions *options, const Value *whole);

/* Fixes where parameters and their gradients lie, and what of them is this rank's; nothing to do where an earlier program did. */
NODISCARD Status layout_params(Plan *plan, const CompileOptions *options, const Graph *graph);
/* The same for all lasting values of this graph. */
NODISCARD Status layout_add(Plan *plan, const CompileOptions *options, const Graph *graph);
