/* Training: resolve, plan, check, load or resume, step, evaluate, save. */
#pragma once

#include "train/checkpoint.h"
#include "train/setup.h"

/* What users of the library (and tests) may hang into the loop. Any may be NULL. */
typedef struct TrainHooks {
    void  *context;
    /* Generates samples after an evaluation and adds them to the metrics. The session has PREFILL and DECODE programs. */
    Status (*sample)(void *context, Session *session, int64_t step, Metrics *metrics);
    /* Around the work of one train step, evaluation and saving not counted; step from 0. */
    void   (*step_begin)(void *context, int64_t step);
    void   (*step_end)(void *context, int64_t step);
} TrainHooks;

typedef struct TrainOutcome {
    bool    already_finished; /* no step was made: an earlier start had finished this run */
    int64_t steps;
    double  loss, eval_loss;  /* of the last step and evaluation; NaN: none */
} TrainOutcome;

/* Trains as the run file says; the model ends up in output_dir. Statuses: ERR_INVALID and the like before anything is touched,
 * ERR_NO_FIT for memory or disk, ERR_DIVERGED, ERR_INTERRUPTED after a resumable save, ERR_SAVE when the last save failed. */
NODISCARD Status train_run(const Config *config, const TrainHooks *hooks, TrainOutcome *out);
