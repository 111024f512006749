/* What a run says on stderr while it goes: one rewritten line on a terminal, a plain line every logging_steps otherwise. */
#pragma once

#include "train/metrics.h"

typedef struct Progress {
    bool    terminal;
    int64_t total_steps, logging_steps;
    int64_t steps_before;   /* done by earlier starts of this run */
    double  limit_seconds;  /* of a step at the machine's measured limit; 0: unknown */
    double  seconds;        /* of a step, smoothed: for the time that is left */
    int64_t steps;          /* of this start */
    bool    open_line;      /* the terminal's line isn't ended */
} Progress;

void progress_init(Progress *progress, int64_t total_steps, int64_t steps_before, int64_t logging_steps, double limit_seconds);
void progress_step(Progress *progress, const StepMetrics *step);
void progress_eval(Progress *progress, const EvalMetrics *eval);
/* Ends the terminal's line, before anything else is printed. */
void progress_break(Progress *progress);
