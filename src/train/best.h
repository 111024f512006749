/* Which evaluation of a run is the best, whether its checkpoint is kept, and when a run that gets no better ends. */
#pragma once

#include "config/config.h"
#include "store/checkpoint.h"

/* save_best, or a key that needs it. */
bool best_is_kept(const Config *config);

/* What metric_for_best_model makes of an evaluation's mean loss. */
double best_metric(const Config *config, double loss);

/* Takes an evaluation in. Whether it is the best so far: one that isn't finite never is. */
bool best_take(const Config *config, int64_t step, double loss, TrainState *state);

/* The patience is at its end. */
bool best_ends(const Config *config, const TrainState *state);
