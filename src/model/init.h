/* Initialisation of weights: a pure function of (seed, parameter name, element), so that neither layout nor threads nor the
 * order of parameters changes a value. docs/training.md specifies it. */
#pragma once

#include "base/pool.h"
#include "run/session.h"

/* Elements [first, first + count) of the tensor `name`: normal with deviation `std` (Box-Muller over Philox4x32-10 keyed
 * by seed, counted by element / 4 and the name's hash), or uniform in [-bound, bound). first must be a multiple of 4. */
void init_normal(uint64_t seed, const char *name, int64_t first, int64_t count, float std, float *out);
void init_uniform(uint64_t seed, const char *name, int64_t first, int64_t count, float bound, float *out);

/* What a parameter starts as (INIT_NORMS: 1, as no base is known here), elements [first, first + count), first a multiple of 4. */
void init_values(uint64_t seed, const Param *param, int64_t first, int64_t count, float *out);

/* Fills the session's parameters: adapters' or the others. pool may be NULL. */
NODISCARD Status init_params(Session *session, uint64_t seed, bool adapters, ThreadPool *pool);
