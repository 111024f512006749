/* What a run says on stderr while it goes: a line every logging_steps and, on a terminal, a status line under them for each step.
 * No line is wider than the terminal: what matters least is left out. */
#pragma once

#include "log/metrics.h"

typedef struct Progress {
    int64_t total_steps, logging_steps;
    double  seconds;                /* of a step, smoothed: for the time that is left */
    int64_t saved_step;             /* of the newest checkpoint; -1: none */
    int64_t steps;                  /* of this start */
    double  limit_sum, seconds_sum; /* of the steps whose limit is known */
} Progress;

void progress_begin(Progress *progress, int64_t total_steps, int64_t logging_steps, int64_t saved_step);
void progress_step(Progress *progress, const StepMetrics *step);
void progress_eval(const EvalMetrics *eval, const EvalTrend *trend);
/* How near the steps came to the machine's limit, 0 to 1; 0: unknown. */
double progress_of_limit(const Progress *progress);
