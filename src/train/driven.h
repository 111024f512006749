/* A run whose steps come from outside: the caller passes micro-batches and says when to update. The run file sets model, plan, programs and
 * checkpoints, as for train_run, so the same batches give the same bits. A driven run has no data and no log of its own. Several ranks
 * (gpus) are threads of this process; the caller's thread is rank 0. A micro-batch has the rows of all ranks. */
#pragma once

#include "config/config.h"
#include "log/metrics.h"
#include "model/weights.h"
#include "text/tokenizer.h"

typedef struct Driven Driven;

/* An input that the model declares, by name: ids for whole numbers or values for floats, as the model declares it. */
typedef struct DrivenInput {
    const char    *name;
    const int32_t *ids;
    const float   *values;
} DrivenInput;

/* All arrays are (rows, cols). */
typedef struct DrivenBatch {
    int64_t        rows, cols;
    const int32_t *tokens;
    const int32_t *labels;    /* for each token the token after it; LABEL_IGNORE: not trained */
    const int32_t *documents; /* document of each token: adjacent tokens with equal numbers are of one document; negative: padding. NULL:
                                 each row is one document */
    const int32_t *positions; /* position in the document, from 0; NULL: counted from the documents */

    const DrivenInput *inputs;
    size_t             num_inputs;
    bool of_data_set; /* documents are numbered by the dataset: documents of a step with the same number get the same random draws */
} DrivenBatch;

/* The config is borrowed until driven_close. Its keys for data, logging and evaluating have no effect. */
NODISCARD Status driven_open(const Config *config, Driven **out);
void             driven_close(Driven *driven); /* NULL is fine */

/* Copies a micro-batch of the next step. A step has at most gradient_accumulation_steps of them, with at most sequence_len columns and
 * per_device_train_batch_size rows for each rank. */
NODISCARD Status driven_step(Driven *driven, const DrivenBatch *batch);
/* Forgets the micro-batches taken since the last update. ERR_INVALID after driven_backward. */
NODISCARD Status driven_drop(Driven *driven);
/* Queues the gradients of the micro-batches taken so far. No further one can be taken before the update. */
NODISCARD Status driven_backward(Driven *driven);
/* Queues the update, and the gradients if driven_backward didn't. At most two updates may wait for driven_result. */
NODISCARD Status driven_update(Driven *driven, double lr);
/* Awaits the oldest update whose result wasn't asked for. */
NODISCARD Status driven_result(Driven *driven, StepMetrics *out);
/* The run file's learning rate for the next update; ERR_INVALID without max_steps, or after max_steps steps. */
NODISCARD Status driven_lr(const Driven *driven, double *out);
int64_t          driven_steps(const Driven *driven); /* updates queued so far, whether their results were asked for or not */

/* Writes losses (rows, cols): -ln p of each label, 0 for LABEL_IGNORE. The batch may have any number of rows. */
NODISCARD Status driven_losses(Driven *driven, const DrivenBatch *batch, float *losses);

/* Writes logits (rows, cols, vocab_size), `numel` floats; they are 0 in padding. The loss is computed from their softmax. Labels aren't
 * read; inputs that don't affect the logits may be missing. The batch may have any number of rows; ERR_INVALID without whole_logits. */
NODISCARD Status driven_logits(Driven *driven, const DrivenBatch *batch, float *logits, size_t numel);

/* Whether the sessions' programs can run already. Products of FP8 codes need scales, which the first step or driven_losses measures. */
bool driven_has_scales(const Driven *driven);

/* Saves OUTPUT/checkpoint-N, as a run does; dir NULL: in the run file's output_dir. */
NODISCARD Status driven_save(Driven *driven, const char *dir);
/* Replaces the state by a checkpoint's; micro-batches taken are forgotten. If it fails after the checkpoint was found valid, no step can be
 * made until another load succeeds. */
NODISCARD Status driven_load(Driven *driven, const char *path);
/* Saves the adapter alone into a folder, or with `whole` a whole model, into which the adapter is merged. */
NODISCARD Status driven_export(Driven *driven, const char *dir, bool whole);

/* Awaits all queued steps; then each rank calls `work` with its session, to run programs that don't train. `work` must do the same on all
 * ranks. */
NODISCARD Status driven_with_sessions(Driven *driven, Status (*work)(void *context, Session *session, int rank), void *context);
/* The trained tensors with their names in files; valid until driven_load. */
NODISCARD Status driven_tensors(Driven *driven, const WeightList **out);
/* Copies all elements of a tensor as floats, or with `gradient` all elements of its gradient of the last step, as driven_backward computed
 * it. */
NODISCARD Status driven_read(Driven *driven, size_t index, bool gradient, float *values, int64_t numel);

const Plan      *driven_plan(const Driven *driven);
const Config    *driven_config(const Driven *driven);                       /* includes the settings that memory: auto chose */
const Tokenizer *driven_tokenizer(const Driven *driven);                    /* NULL: the model's folder has none */
int64_t          driven_input_size(const Driven *driven, const char *name); /* elements per token; 0: the model has no such input */
int64_t          driven_vocab_size(const Driven *driven);
