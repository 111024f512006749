/* The scales that a new run begins with. */
#pragma once

#include "comm/comm.h"
#include "run/session.h"

/* To be called once runs of program `calibrate` have measured the plan's scaled tensors: a scale for each, from the largest magnitude that
 * any rank's rows have, 1 where all was 0. The measurements count with the first step's values. Frozen weights have theirs. comm NULL:
 * one rank. */
NODISCARD Status scales_begin(Session *session, Comm *comm, int64_t margin);

/* Forgets the measurements; the scales stay until others are made. */
NODISCARD Status scales_forget(Session *session);
