/* The layout that programs of a session share. */
#pragma once

#include "passes/compile.h"

enum { PLACE_ALIGN = 256 }; /* bytes: the most that vector loads, cuBLASLt and cuDNN require */

int64_t layout_align(int64_t n, int64_t to);

/* The chunk that is read first among the chunks that are gathered whole for a step; NULL: there is none. *out_bucket: its bucket. The
 * optimizer's program gathers this chunk as soon as it is updated, beside the other updates, so that the next step begins at once. */
const Chunk *layout_first_chunk(const Plan *plan, const Bucket **out_bucket);

/* Whether the value is a parameter with memory of its own (a whole value): an unpacked parameter, or the packed memory of several
 * parameters, its members. */
bool layout_is_whole(const Value *value);
/* Iterates over the parameters of a whole value: the value itself or, if packed, its members. last: the parameter before; NULL: returns the
 * first. Returns NULL after the last; codes and scales have no parameter. */
const Value *layout_next_param(const Value *whole, const Value *last);
/* The first parameter of a whole value; NULL: it has none. */
const Param *layout_first_param(const Value *whole);

/* The space in which a whole value is kept. */
Space layout_space(const CompileOptions *options, const Value *whole);
/* The space in which a whole value's gradient is kept between micro-steps. */
Space layout_grad_space(const CompileOptions *options, const Value *whole);

/* Lays out parameters and their gradients, and this rank's pieces of them. Does nothing if an earlier program laid them out. */
NODISCARD Status layout_params(Plan *plan, const CompileOptions *options, const Graph *graph);
/* Lays out all lasting values of this graph. */
NODISCARD Status layout_add(Plan *plan, const CompileOptions *options, const Graph *graph);
