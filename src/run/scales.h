/* The first scales of a new run. */
#pragma once

#include "comm/comm.h"
#include "run/session.h"

/* Makes the plan's first scales, after runs of program `calibrate` have measured the scaled tensors: from the largest magnitude over all
 * ranks, or 1 if that is 0. The measurements stay, and count as measurements of the first step too. Frozen weights keep their scales.
 * margin as in PrecisionOptions; comm NULL: one rank. */
NODISCARD Status scales_begin(Session *session, Comm *comm, int64_t margin);

/* Forgets the measurements. The scales stay until new ones are made. */
NODISCARD Status scales_forget(Session *session);
