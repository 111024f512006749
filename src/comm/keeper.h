/* Keeper: a thread that regularly tells the other ranks that this one is alive during long work. It does so without limit (downloads,
 * tokenizing, loading weights) or for some seconds (a step, once steps were timed). A rank whose process dies is noticed in any case.
 * Once a failure has ended the group, the keeper ends this process if the rank doesn't leave within 2 s. */
#pragma once

#include "comm/comm.h"

typedef struct Keeper Keeper;

/* comm NULL: *out is NULL, and there is no thread. */
NODISCARD Status keeper_start(Comm *comm, Keeper **out);
/* From now on the keeper's beats name `phase` (a string that isn't copied), for at most `seconds`. Here and below, keeper may be NULL. */
void keeper_phase(Keeper *keeper, const char *phase, double seconds);
void keeper_stop(Keeper *keeper);
