/* trainer_state.json, as Hugging Face's Trainer writes it: dashboards and plotting scripts read it. */
#pragma once

#include "store/checkpoint.h"

typedef struct TrainerFacts {
    int64_t     max_steps, logging_steps, save_steps, eval_steps;
    int64_t     batch_size, rows_per_step;
    double      num_epochs, epoch;
    double      flops_per_step;
    int64_t     best_step; /* of the state; 0: of the log */
    double      best_metric;
    const char *best_checkpoint; /* NULL: it isn't kept */
    bool        finished;        /* the closing entry with averages is added */
} TrainerFacts;

/* history: of metrics.jsonl, so that a resumed run's is whole; NULL: there is none. */
void trainer_state_text(const History *history, const TrainState *state, const TrainerFacts *facts, StrBuf *out);
