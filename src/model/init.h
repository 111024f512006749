/* Initialisation of weights: a pure function of (seed, parameter name, element). So neither layout nor threads nor the order of parameters
 * changes a value. docs/training.md specifies it. */
#pragma once

#include "base/pool.h"
#include "run/session.h"

/* Elements [first, first + count) of the tensor `name`: normal with deviation `std`, or uniform in [-bound, bound). Normal ones are
 * Box-Muller over Philox4x32-10, whose key is the seed and whose counter is element / 4 and the name's hash. first must be a multiple of
 * 4. */
void init_normal(uint64_t seed, const char *name, int64_t first, int64_t count, float std, float *out);
void init_uniform(uint64_t seed, const char *name, int64_t first, int64_t count, float bound, float *out);

/* The initial elements [first, first + count) of a parameter; first must be a multiple of 4. INIT_NORMS gives 1, as no base is known
 * here. */
void init_values(uint64_t seed, const Param *param, int64_t first, int64_t count, float *out);

/* Fills the session's parameters: those of adapters (`adapters`), or all others. pool may be NULL. */
NODISCARD Status init_params(Session *session, uint64_t seed, bool adapters, ThreadPool *pool);
