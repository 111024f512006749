/* Keeper: a thread that tells the other ranks, each second, that this one is alive, while it does what may take as long as it takes
 * (downloads, tokenizing, loading weights). A rank whose process ends is noticed all the same. */
#pragma once

#include "comm/comm.h"

typedef struct Keeper Keeper;

/* comm NULL: *out is NULL, and nothing is told. phase: a constant, what beats name from now on. */
NODISCARD Status keeper_start(Comm *comm, const char *phase, Keeper **out);
void             keeper_phase(Keeper *keeper, const char *phase); /* NULL is fine, here and below */
void             keeper_stop(Keeper *keeper);
