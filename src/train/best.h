/* Which evaluation of a run is the best, whether its checkpoint is kept, and when a run that no longer improves ends. */
#pragma once

#include "config/config.h"
#include "store/checkpoint.h"

/* Whether the best checkpoint is kept: save_best, or a key that needs it. */
bool best_is_kept(const Config *config);

/* Converts an evaluation's mean loss to metric_for_best_model. */
double best_metric(const Config *config, double loss);

/* Records an evaluation in *state; returns whether it is the best so far. A loss that isn't finite is never the best. */
bool best_take(const Config *config, int64_t step, double loss, TrainState *state);

/* Whether early_stopping_patience is used up, so that the run ends. */
bool best_ends(const Config *config, const TrainState *state);
