/* See eval_trend.h. */
#include "log/eval_trend.h"

#include <math.h>
#include <string.h>

#define WORSE 1.01 /* multiple of the best loss; a smaller rise may be noise */

void eval_trend_step(EvalTrend *trend, double train_loss)
{
    if (!isfinite(train_loss)) return;
    trend->train_sum += train_loss;
    trend->train_count++;
}

void eval_trend_eval(EvalTrend *trend, int64_t step, double loss)
{
    if (!isfinite(loss)) return;
    if (trend->train_count) trend->train_last = trend->train_sum / (double)trend->train_count;
    trend->train_sum = 0;
    trend->train_count = 0;
    trend->last = loss;
    trend->last_step = step;
    if (trend->best_step && loss >= trend->best) return;
    trend->best = loss;
    trend->best_step = step;
    trend->train_best = trend->train_last;
}

void eval_trend_line(EvalTrend *trend, const JsonValue *line)
{
    const char *log = "";
    double      loss = NAN;
    int64_t     step = 0;
    json_get_str(line, "log", &log);
    json_get_double(line, "loss", &loss);
    json_get_int(line, "step", &step);
    if (strcmp(log, "step") == 0)
        eval_trend_step(trend, loss);
    else if (strcmp(log, "eval") == 0)
        eval_trend_eval(trend, step, loss);
}

bool eval_trend_overfits(const EvalTrend *trend)
{
    return trend->last_step > trend->best_step && trend->last >= WORSE * trend->best && trend->train_last < trend->train_best;
}
