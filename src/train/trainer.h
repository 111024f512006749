/* Training: resolve, plan, check, load or resume, step, evaluate, save. */
#pragma once

#include "data/loader.h"
#include "log/eval_trend.h"
#include "setup/setup.h"
#include "store/checkpoint.h"
#include "text/template/template.h"
#include "text/tokenizer.h"

/* What samples are made with. */
typedef struct SampleJob {
    Session         *session; /* has PREFILL and DECODE programs */
    const Tokenizer *tokenizer;
    const Template  *tmpl;       /* the run's chat template; NULL: it trains no turns, or there is none */
    Loader          *eval;       /* the rows just evaluated, of as many tokens as the session's EVAL program takes */
    int32_t          stop_token; /* that ends a turn beside the tokenizer's EOS; -1: none */
    int64_t          step;
    Metrics         *metrics; /* where samples go; NULL: nowhere, rank 0's do */
} SampleJob;

/* What users of the library (and tests) may hang into the loop. Any may be NULL. */
typedef struct TrainHooks {
    void *context;
    /* After an evaluation, on every rank, each on a thread of its own. */
    Status (*sample)(void *context, const SampleJob *job);
    /* Around the work of one train step on rank 0, evaluation and saving not counted; step from 0. */
    void (*step_begin)(void *context, int64_t step);
    void (*step_end)(void *context, int64_t step);
} TrainHooks;

typedef struct TrainOutcome {
    int       rank;             /* of this process: rank 0 tells people */
    bool      already_finished; /* no step was made: an earlier start had finished this run */
    int64_t   steps;
    double    loss, eval_loss; /* of the last step and evaluation; NaN: none */
    EvalTrend trend;           /* of all evaluations */
    int64_t   held_step;       /* whose weights output_dir holds; -1: it wasn't finished here */
    int64_t   best_step;       /* of the best evaluation so far; 0: none */
} TrainOutcome;

/* Whether a run that was cut goes on with these very settings: resume_from_checkpoint says so. */
bool train_goes_on(const Config *config);

/* Trains as the run file says; the model ends up in output_dir. Statuses: ERR_INVALID and the like before anything is touched,
 * ERR_NO_FIT for memory or disk, ERR_DIVERGED, ERR_INTERRUPTED after a resumable save, ERR_SAVE when the last save failed. */
NODISCARD Status train_run(const Config *config, const TrainHooks *hooks, TrainOutcome *out);
