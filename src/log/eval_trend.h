/* How the evaluations of a run went: which was best, and whether the model overfits its training data. */
#pragma once

#include "base/json.h"

/* Zero-initialise. Losses are means; a loss that isn't finite is ignored. */
typedef struct EvalTrend {
    int64_t best_step, last_step;   /* 0: no evaluation yet */
    double  best, last;             /* evaluation losses */
    double  train_best, train_last; /* mean training loss over the steps between the best (last) evaluation and the evaluation before it */
    double  train_sum;              /* sum of training losses since the last evaluation */
    int64_t train_count;
} EvalTrend;

void eval_trend_step(EvalTrend *trend, double train_loss);
void eval_trend_eval(EvalTrend *trend, int64_t step, double loss);
/* Adds a step's or an evaluation's line of metrics.jsonl; other lines change nothing. */
void eval_trend_line(EvalTrend *trend, const JsonValue *line);

/* Whether the last evaluation's loss is at least 1 % above the best one's while the training loss kept falling. */
bool eval_trend_overfits(const EvalTrend *trend);
