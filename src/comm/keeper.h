/* Keeper: a thread that tells the other ranks, again and again, that this one is alive, while it does what may take its time: as long as it
 * takes (downloads, tokenizing, loading weights), or so many seconds (a step, once steps were timed). A rank whose process ends is noticed
 * all the same. Once a failure has ended all, the keeper ends the process of a rank that doesn't come back by itself within 2 s. */
#pragma once

#include "comm/comm.h"

typedef struct Keeper Keeper;

/* comm NULL: *out is NULL, and nothing is told. */
NODISCARD Status keeper_start(Comm *comm, Keeper **out);
/* From now on beats name `phase`, a constant, for at most so many seconds. keeper NULL is fine, here and below. */
void keeper_phase(Keeper *keeper, const char *phase, double seconds);
void keeper_stop(Keeper *keeper);
