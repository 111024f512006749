/* trainer_state.json in the format of Hugging Face's Trainer, which dashboards and plotting scripts read. */
#pragma once

#include "store/checkpoint.h"

typedef struct TrainerFacts {
    int64_t     max_steps, logging_steps, save_steps, eval_steps;
    int64_t     batch_size, rows_per_step;
    double      num_epochs, epoch;
    double      flops_per_step;
    int64_t     best_step; /* step of the run's best evaluation; 0: take it from the log */
    double      best_metric;
    const char *best_checkpoint; /* path of the best checkpoint; NULL: no such checkpoint is kept */
    bool        finished;        /* if true, a closing entry with averages is added */
} TrainerFacts;

/* Appends the text of the file. history: read from metrics.jsonl, so that it covers a resumed run from its first step; NULL: none. */
void trainer_state_text(const History *history, const TrainState *state, const TrainerFacts *facts, StrBuf *out);
