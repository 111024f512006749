/* Training: resolves settings, plans, checks, loads or resumes, steps, evaluates and saves. */
#pragma once

#include "data/loader.h"
#include "log/eval_trend.h"
#include "setup/setup.h"
#include "store/checkpoint.h"
#include "text/template/template.h"
#include "text/tokenizer.h"

/* The argument of the sample hook. */
typedef struct SampleJob {
    Session         *session; /* has programs of the entries prefill and decode */
    const Tokenizer *tokenizer;
    const Template  *tmpl;       /* the run's chat template; NULL: the run trains no turns, or has none */
    Loader          *eval;       /* the evaluation rows, each as long as a row of the session's eval program */
    int32_t          stop_token; /* token that ends turns, besides the tokenizer's EOS; -1: none */
    int64_t          step;
    Metrics         *metrics; /* where samples are logged; NULL on ranks other than 0 */
} SampleJob;

/* Hooks into the loop for users of the library and tests. Each may be NULL. */
typedef struct TrainHooks {
    void *context;
    /* Called after an evaluation on every rank, each on a thread of its own. */
    Status (*sample)(void *context, const SampleJob *job);
    /* Called on rank 0 before and after the work of a train step, without evaluation and saving; step from 0. */
    void (*step_begin)(void *context, int64_t step);
    void (*step_end)(void *context, int64_t step);
} TrainHooks;

typedef struct TrainOutcome {
    int       rank;             /* rank of this process; rank 0 reports to the user */
    bool      already_finished; /* no step was made: an earlier start had completed this run */
    int64_t   steps;
    double    loss, eval_loss; /* losses of the last step and of the last evaluation; NaN: none */
    EvalTrend trend;           /* trend of the losses of all evaluations */
    int64_t   held_step;       /* step of the weights in output_dir; -1: the run wasn't completed here */
    int64_t   best_step;       /* step of the best evaluation so far; 0: none */
} TrainOutcome;

/* Whether an interrupted run can be resumed with the same settings, because resume_from_checkpoint is auto or true. */
bool train_goes_on(const Config *config);

/* Trains as the run file says; the final model is in output_dir. ERR_INVALID and other errors of settings come before any file is changed;
 * ERR_NO_FIT: too little memory or disk; ERR_DIVERGED; ERR_INTERRUPTED: after a resumable save; ERR_SAVE: the last save failed. */
NODISCARD Status train_run(const Config *config, const TrainHooks *hooks, TrainOutcome *out);
