/* What a run prints on stderr while it trains: a line every logging_steps and, on a terminal, a status line below for each step. No line is
 * wider than the terminal: the least important parts are left out. */
#pragma once

#include "log/metrics.h"

typedef struct Progress {
    int64_t total_steps, logging_steps;
    double  seconds;                /* seconds of a step, smoothed, for the ETA */
    int64_t saved_step;             /* step of the newest checkpoint; -1: none */
    int64_t steps;                  /* steps since this start */
    double  limit_sum, seconds_sum; /* sums over the steps whose limit is known */
} Progress;

void progress_begin(Progress *progress, int64_t total_steps, int64_t logging_steps, int64_t saved_step);
void progress_step(Progress *progress, const StepMetrics *step);
void progress_eval(const EvalMetrics *eval, const EvalTrend *trend);
/* How close the steps came to the machine's limit, from 0 to 1; 0: unknown. */
double progress_of_limit(const Progress *progress);
