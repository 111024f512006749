/* A run whose steps come from outside: the caller hands in micro-batches and says when to update. The run file says model, plan, programs
 * and checkpoints, as for train_run, so that the same batches give the same bits. It has no data or log of its own. Several ranks (gpus)
 * are threads of this process, and the caller's thread is rank 0; a micro-batch has the rows of all ranks. */
#pragma once

#include "config/config.h"
#include "log/metrics.h"
#include "model/weights.h"
#include "text/tokenizer.h"

typedef struct Driven Driven;

/* An input of the model's own, by name: whole numbers or floats, as it asks for. */
typedef struct DrivenInput {
    const char    *name;
    const int32_t *ids;
    const float   *values;
} DrivenInput;

/* All arrays are (rows, cols). */
typedef struct DrivenBatch {
    int64_t        rows, cols;
    const int32_t *tokens;
    const int32_t *labels;    /* the token after each; LABEL_IGNORE: not trained */
    const int32_t *documents; /* which one a token is of, equal neighbours see one another; negative: padding. NULL: a row is one */
    const int32_t *positions; /* in the document, from 0; NULL: counted */

    const DrivenInput *inputs;
    size_t             num_inputs;
    bool               of_data_set; /* documents are a data set's own numbers: one that comes twice in a step draws the same both times */
} DrivenBatch;

/* The config is borrowed until driven_close. What the run file says of data, logging and evaluating has no effect. */
NODISCARD Status driven_open(const Config *config, Driven **out);
void             driven_close(Driven *driven); /* NULL is fine */

/* Takes a copy of a micro-batch of the next step; at most gradient_accumulation_steps of them, of columns up to
 * the run file's, and of rows up to its own for each rank. */
NODISCARD Status driven_step(Driven *driven, const DrivenBatch *batch);
/* Forgets them. ERR_INVALID behind driven_backward. */
NODISCARD Status driven_drop(Driven *driven);
/* Queues the gradients of the micro-batches that were taken. No further one can be taken before the update. */
NODISCARD Status driven_backward(Driven *driven);
/* Queues the gradients, unless they were, and the update. Its result is asked for later; at most two may be waiting. */
NODISCARD Status driven_update(Driven *driven, double lr);
/* Awaits the oldest update of which no result was asked for. */
NODISCARD Status driven_result(Driven *driven, StepMetrics *out);
/* The run file's rate for the next update; ERR_INVALID without max_steps or behind them. */
NODISCARD Status driven_lr(const Driven *driven, double *out);
int64_t          driven_steps(const Driven *driven); /* done, results of all of them asked for or not */

/* losses (rows, cols): -ln p of each label, 0 where there is none. Any number of rows. */
NODISCARD Status driven_losses(Driven *driven, const DrivenBatch *batch, float *losses);

/* logits (rows, cols, vocab_size), `numel` floats: the loss is of their softmax; 0 in padding. Labels aren't read, and of the model's
 * inputs only those that logits follow from. Any number of rows; ERR_INVALID without whole_logits. */
NODISCARD Status driven_logits(Driven *driven, const DrivenBatch *batch, float *logits, size_t numel);

/* Whether sessions can be used as they are: products by FP8 codes need scales, which the first step or driven_losses measures. */
bool driven_has_scales(const Driven *driven);

/* OUTPUT/checkpoint-N, as a run leaves it; dir NULL: the run file's output_dir. */
NODISCARD Status driven_save(Driven *driven, const char *dir);
/* The state of a checkpoint in place of this one; micro-batches that were taken are forgotten. If it fails behind the check of the
 * checkpoint, no step can be made before another one is loaded. */
NODISCARD Status driven_load(Driven *driven, const char *path);
/* The adapter alone, or (`whole`) a model, with the adapter merged into it, into a folder. */
NODISCARD Status driven_export(Driven *driven, const char *dir, bool whole);

/* Awaits what is queued; then each rank calls `work` with its session, for programs that don't train. `work` does the same on all. */
NODISCARD Status driven_with_sessions(Driven *driven, Status (*work)(void *context, Session *session, int rank), void *context);
/* The trained tensors, by their names in files; valid until driven_load. */
NODISCARD Status driven_tensors(Driven *driven, const WeightList **out);
/* All elements of one as floats, or (`gradient`) of its gradient in the last step, as driven_backward made it. */
NODISCARD Status driven_read(Driven *driven, size_t index, bool gradient, float *values, int64_t numel);

const Plan      *driven_plan(const Driven *driven);
const Config    *driven_config(const Driven *driven);                       /* with what memory: auto chose */
const Tokenizer *driven_tokenizer(const Driven *driven);                    /* NULL: its folder has none */
int64_t          driven_input_size(const Driven *driven, const char *name); /* numbers of a token; 0: there is no such input */
int64_t          driven_vocab_size(const Driven *driven);
