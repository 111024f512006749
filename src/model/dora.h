/* How DoRA begins (Liu et al. 2024): an adapter's magnitudes are the norms of its layer's weight, row by row. So nothing changes as long as
 * B is zeros. */
#pragma once

#include "base/pool.h"
#include "comm/comm.h"
#include "model/hf_model.h"
#include "run/session.h"

/* Sets the session's adapters to what init_params makes, but with these norms as magnitudes. The norms are of the weights as the plan keeps
 * them: quantised to `made` (weights_made_format; NULL: not quantised) and dequantised, then rounded to their dtype. The model's weights
 * must be open. Each rank computes some norms; every rank receives all of them. pool may be NULL. */
NODISCARD Status dora_begin(Session *session, HfModel *model, const WeightFormat *made, uint64_t seed, Comm *comm, ThreadPool *pool);
