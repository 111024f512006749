/* How the evaluations of a run went: the best one, and whether the model learns its training data by heart. */
#pragma once

#include "base/json.h"

/* Zero-initialise. Losses are means; those that aren't finite are passed over. */
typedef struct EvalTrend {
    int64_t best_step, last_step;   /* 0: no evaluation yet */
    double  best, last;             /* evaluation losses */
    double  train_best, train_last; /* training loss of the steps between that evaluation and the one before it */
    double  train_sum;              /* since the last evaluation */
    int64_t train_count;
} EvalTrend;

void eval_trend_step(EvalTrend *trend, double train_loss);
void eval_trend_eval(EvalTrend *trend, int64_t step, double loss);
/* The same of a line of metrics.jsonl; samples change nothing. */
void eval_trend_line(EvalTrend *trend, const JsonValue *line);

/* The last evaluation's loss is at least 1 % above the best one's, though the training loss went on falling. */
bool eval_trend_overfits(const EvalTrend *trend);
