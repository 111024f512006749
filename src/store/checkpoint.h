/* Checkpoints: OUTPUT/checkpoint-N, which holds the model (or adapter) as others load it, the optimizer's state, the run's own
 * state, and a manifest of sizes and checksums that is written last. A checkpoint appears by rename, whole, or not at all. */
#pragma once

#include "log/metrics.h"
#include "model/hf_model.h"
#include "model/lora_pairs.h"
#include "passes/compile.h"
#include "run/session.h"

/* The best of a run's evaluations so far. */
typedef struct BestEval {
    int64_t step; /* 0: there is none */
    double  loss;
} BestEval;

/* The state of a run besides weights and optimizer state. Random numbers and data need no state of their own: they are functions
 * of the seed, the step and the cursor. */
typedef struct TrainState {
    int64_t  step;                        /* train steps done */
    int64_t  rows;                        /* the data cursor: rows that they had; -1: not known */
    int64_t  applied;                     /* of them, the ones that updated weights: bias correction counts these */
    int64_t  skipped;                     /* not finite */
    int64_t  bad_in_row;                  /* of these, the last ones in a row */
    int64_t  total_tokens, total_trained; /* docs/metrics.md */
    int64_t  metrics_bytes;               /* length of metrics.jsonl */
    uint64_t metrics_hash;                /* of its lines; 0: not known, as in older checkpoints */
    bool     eval_pending;                /* interrupted before the evaluation of this step */
    BestEval best;
    int64_t  evals_since; /* evaluations in a row that weren't better: early_stopping_patience */
    uint64_t settings_hash, data_hash;
} TrainState;

/* All that saving needs to know of the run. */
typedef struct SaveContext {
    Session            *session;
    Comm               *comm; /* of the ranks that save together; NULL: there is one */
    const HfModel      *model;
    const LoraOptions  *lora;        /* enabled: adapters are saved, under PEFT's names */
    const LoraPairs    *pairs;       /* adapters: the part of the base that they began with; NULL: none */
    const char         *base_model;  /* adapters: base_model_name_or_path */
    const WeightFormat *base_format; /* adapters: of the base; NULL: it isn't quantised */
    const HfSideFiles  *side_files;
    Str                 chat_template; /* in place of theirs; data NULL: none */
    int32_t             eos, stop;     /* the tokenizer's EOS; the token that ends a turn where that is another: stop_token.h; -1: none */
    const char         *output_dir;
    int64_t             max_shard_bytes;
    int64_t             keep;          /* save_total_limit; 0: all */
    int64_t             best;          /* step of the checkpoint that stays besides them; 0: none */
    int64_t             branch;        /* our checkpoints of later steps are set aside before this one appears: checkpoint_leave_branch */
    const char         *trainer_state; /* trainer_state.json's text */
} SaveContext;

/* Bytes that one checkpoint, and the final model, take on disk. */
int64_t checkpoint_bytes(const Plan *plan, bool adapters);
int64_t checkpoint_model_bytes(const Plan *plan, bool adapters);

/* Saves, then removes our oldest checkpoints beyond `keep`, but not `best`; later ones than this stay. If saving fails, the old ones
 * stays. A folder of that name that isn't ours gets another name; one of ours is there, whole, until this one is. */
NODISCARD Status checkpoint_save(const SaveContext *context, const TrainState *state);
/* Model or adapter, config and tokenizer files alone, into `folder`. */
NODISCARD Status checkpoint_save_model(const SaveContext *context, const char *folder);

/* Whether every file is there with the size and checksum of the manifest, and the state is one that a run writes; ERR_CHECKPOINT names the
 * first that isn't. */
NODISCARD Status checkpoint_verify(const char *path);
/* Whether it is a checkpoint of this program with every file of its manifest in its size. Nothing else is ever removed. */
NODISCARD Status checkpoint_is_ours(const char *path, bool *out);
NODISCARD Status checkpoint_read_state(const char *path, TrainState *out);
/* The folder checkpoint-N of a step. */
const char *checkpoint_path(Arena *arena, const char *output_dir, int64_t step);
/* Whether output_dir holds the checkpoint of that evaluation: another run may have left one of the same step. */
NODISCARD Status checkpoint_has_best(const char *output_dir, const BestEval *best, bool *out);
/* Hands the device the choices of kernels that the checkpoint was made with; before session_create. One without is fine. */
NODISCARD Status checkpoint_load_tuning(const char *path, Device *device);

/* The newest valid checkpoint of output_dir, or "" when there is none. A warning says why one was passed over. */
NODISCARD Status checkpoint_newest(const char *output_dir, char *out_path, size_t path_bytes);

/* To be called when there is no valid one: ERR_CHECKPOINT if output_dir holds damaged ones of ours. The message says how to start anew, and
 * which of them has a whole model. */
NODISCARD Status checkpoint_refuse_damaged(const char *output_dir);

/* Weights and optimizer state into the session. *out_has_scales: with the scales of all that it keeps in codes (Plan.scaled). */
NODISCARD Status checkpoint_load(const char *path, Session *session, bool adapters, bool *out_has_scales);

/* Our checkpoints of later steps than `step` are of a branch that a run left when it went on from an earlier one: they get names under
 * which nobody goes on from them, and the log says which. */
NODISCARD Status checkpoint_leave_branch(const char *output_dir, int64_t step);

/* A save that was killed while it replaced a checkpoint may have left the old one hidden: it gets its name back. To be called before
 * checkpoints are looked for, by who has the lock of output_dir. */
NODISCARD Status checkpoint_restore(const char *output_dir);
/* The same of a checkpoint that is named and not there, wherever it lies. ERR_INVALID while a run writes its folder. */
NODISCARD Status checkpoint_restore_named(const char *path);
/* Removes the files that an interrupted or failed save left behind. */
NODISCARD Status checkpoint_clean(const char *output_dir);
/* Removes every checkpoint of ours, and says which folders stay. */
NODISCARD Status checkpoint_remove_all(const char *output_dir);
/* Removes the oldest of our checkpoints up to `step`, so that `keep` of them stay (0: all) and `best`, as checkpoint_save does. */
NODISCARD Status checkpoint_prune(const char *output_dir, int64_t keep, int64_t best, int64_t step);

/* Our checkpoints in output_dir. count: of the ones up to `step`; bytes: of all, whatever their step. */
typedef struct CheckpointsHeld {
    int64_t count, bytes;
} CheckpointsHeld;
NODISCARD Status checkpoint_held(const char *output_dir, int64_t step, CheckpointsHeld *out);
