/* The scales that a new run begins with. */
#pragma once

#include "run/session.h"

/* To be called once runs of program `calibrate` have measured the plan's scaled tensors: a scale for each, 1 where all was 0. What was
 * measured counts with the first step's values. Frozen weights have theirs. */
NODISCARD Status scales_begin(Session *session, int64_t margin);
