/* The learning rate as a pure function of the train step: the same for any accumulation, batch or machine. */
#pragma once

#include "config/config.h"

typedef struct Schedule {
    Choice  shape; /* OPT_LR_LINEAR, OPT_LR_COSINE, OPT_LR_CONSTANT, OPT_LR_WSD */
    double  peak, final_fraction;
    int64_t total, warmup, cooldown; /* steps */
} Schedule;

/* warmup_steps above 0 overrides warmup_ratio. ERR_INVALID: warm-up and cooldown together exceed total_steps. */
NODISCARD Status schedule_make(const Config *config, int64_t total_steps, Schedule *out);

/* step: from 0. Warm-up: peak (step + 1) / (warmup + 1), so that no step has a rate of 0. After it, with p = (step - warmup) / (total -
 * warmup) and f the final fraction: linear: peak (1 - p (1 - f)); cosine: peak (f + (1 - f) (1 + cos(pi p)) / 2); constant and wsd: peak,
 * and over the last `cooldown` steps linearly down to f times peak. */
double schedule_lr(const Schedule *schedule, int64_t step);
