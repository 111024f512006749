/* See best.h. */
#include "train/best.h"

#include <math.h>

bool best_is_kept(const Config *config)
{
    return config->save_best || config->load_best_model_at_end;
}

double best_metric(const Config *config, double loss)
{
    return config->metric_for_best_model == OPT_BEST_PERPLEXITY ? exp(loss) : loss;
}

/* As in transformers: any lower loss becomes the best, but the count for early_stopping_patience only restarts if the metric improved by
 * more than early_stopping_threshold. */
bool best_take(const Config *config, int64_t step, double loss, TrainState *state)
{
    double metric = best_metric(config, loss), gain = state->best.step ? best_metric(config, state->best.loss) - metric : INFINITY;
    bool   is_best = isfinite(loss) && (!state->best.step || loss < state->best.loss);
    state->evals_since = is_best && gain > config->early_stopping_threshold ? 0 : state->evals_since + 1;
    if (is_best) state->best = (BestEval){step, loss};
    return is_best;
}

bool best_ends(const Config *config, const TrainState *state)
{
    return config->early_stopping_patience > 0 && state->evals_since >= config->early_stopping_patience;
}
