/* How DoRA begins (Liu et al. 2024): an adapter's magnitudes are the norms of the rows of its layer's weight, so that nothing changes as
 * long as B is zeros. */
#pragma once

#include "base/pool.h"
#include "comm/comm.h"
#include "model/hf_model.h"
#include "run/session.h"

/* The session's adapters become what init_params makes, with these norms as magnitudes. They are of the weights as the plan keeps them:
 * rounded to its dtype, or what `made` makes of them (weights_made_format). The model's weights are open. Each rank computes some, and all
 * get all. pool may be NULL. */
NODISCARD Status dora_begin(Session *session, HfModel *model, const WeightFormat *made, uint64_t seed, Comm *comm, ThreadPool *pool);
