/* Checkpoints: OUTPUT/checkpoint-N holds the model (or adapter) as other programs load it, the optimizer's state and the run's own state. A
 * manifest of sizes and checksums is written last. A rename makes the whole checkpoint appear at once, or it doesn't appear. */
#pragma once

#include "log/metrics.h"
#include "model/hf_model.h"
#include "model/lora_pairs.h"
#include "passes/compile.h"
#include "run/session.h"

/* The best of a run's evaluations so far. */
typedef struct BestEval {
    int64_t step; /* 0: no evaluation yet */
    double  loss;
} BestEval;

/* The state of a run besides weights and optimizer state. Random numbers and data need no state of their own: they are functions
 * of the seed, the step and the cursor. */
typedef struct TrainState {
    int64_t  step;                        /* train steps done */
    int64_t  rows;                        /* the data cursor: rows that these steps have read; -1: not known */
    int64_t  applied;                     /* steps that updated weights; bias correction counts these */
    int64_t  skipped;                     /* steps that weren't finite: no update */
    int64_t  bad_in_row;                  /* how many of the latest steps in a row were skipped */
    int64_t  total_tokens, total_trained; /* as docs/metrics.md defines them */
    int64_t  metrics_bytes;               /* length of metrics.jsonl in bytes */
    uint64_t metrics_hash;                /* hash of the first metrics_bytes of metrics.jsonl; 0: not known, as in older checkpoints */
    bool     eval_pending;                /* the run was interrupted before the evaluation of this step */
    BestEval best;
    int64_t  evals_since; /* evaluations since the best one, for early_stopping_patience */
    uint64_t settings_hash, data_hash;
} TrainState;

/* Everything that saving needs to know about the run. */
typedef struct SaveContext {
    Session            *session;
    Comm               *comm; /* the ranks that save together; NULL: only one */
    const HfModel      *model;
    const LoraOptions  *lora;        /* if enabled, adapters are saved, under PEFT's names */
    const LoraPairs    *pairs;       /* adapters: their initial pairs, if made from the base's weights; else NULL */
    const char         *base_model;  /* adapters: base_model_name_or_path */
    const WeightFormat *base_format; /* adapters: how the base was quantised; NULL: it wasn't */
    const HfSideFiles  *side_files;
    Str                 chat_template; /* replaces the side files' template, unless data is NULL */
    int32_t             eos, stop;     /* the tokenizer's EOS; the token that ends a turn if it isn't EOS (stop_token.h); -1: none */
    const char         *output_dir;
    int64_t             max_shard_bytes;
    int64_t             keep;          /* save_total_limit; 0: all */
    int64_t             best;          /* step of a checkpoint that is kept besides the newest ones; 0: none */
    int64_t             branch;        /* our checkpoints of later steps than this are set aside first: checkpoint_leave_branch */
    const char         *trainer_state; /* text of trainer_state.json */
} SaveContext;

/* checkpoint_bytes: bytes that one checkpoint takes on disk. checkpoint_model_bytes: bytes that the final model takes. */
int64_t checkpoint_bytes(const Plan *plan, bool adapters);
int64_t checkpoint_model_bytes(const Plan *plan, bool adapters);

/* Saves, then removes our oldest checkpoints beyond `keep`. `best` and checkpoints of later steps stay. If saving fails, no old checkpoint
 * is removed. A folder of the same name is renamed if it isn't ours; a checkpoint of ours stays whole until the new one replaces it. */
NODISCARD Status checkpoint_save(const SaveContext *context, const TrainState *state);
/* Writes only the model or adapter, its config and the tokenizer's files into `folder`. */
NODISCARD Status checkpoint_save_model(const SaveContext *context, const char *folder);

/* Checks that every file has the size and checksum of the manifest, and that the state is one that a run writes. ERR_CHECKPOINT names the
 * first fault. */
NODISCARD Status checkpoint_verify(const char *path);
/* *out: whether `path` is a checkpoint of this program in which every file has the size that the manifest says. Only such folders are ever
 * removed. */
NODISCARD Status checkpoint_is_ours(const char *path, bool *out);
NODISCARD Status checkpoint_read_state(const char *path, TrainState *out);
/* The path of the folder checkpoint-N for step N. */
const char *checkpoint_path(Arena *arena, const char *output_dir, int64_t step);
/* *out: whether output_dir's checkpoint of step best->step records the same best evaluation. Another run may have left a checkpoint of that
 * step. */
NODISCARD Status checkpoint_has_best(const char *output_dir, const BestEval *best, bool *out);
/* Gives the device the kernel choices stored in the checkpoint, if any. Call it before session_create. */
NODISCARD Status checkpoint_load_tuning(const char *path, Device *device);

/* The newest valid checkpoint of output_dir, or "" if there is none. A warning explains each newer one that isn't valid. */
NODISCARD Status checkpoint_newest(const char *output_dir, char *out_path, size_t path_bytes);

/* Call it if there is no valid checkpoint: ERR_CHECKPOINT if output_dir holds damaged checkpoints of ours. The message says how to start
 * anew, and which damaged checkpoint has a whole model. */
NODISCARD Status checkpoint_refuse_damaged(const char *output_dir);

/* Loads weights and optimizer state into the session. *out_has_scales: the scales of all values kept as codes (Plan.scaled) were loaded
 * too. */
NODISCARD Status checkpoint_load(const char *path, Session *session, bool adapters, bool *out_has_scales);

/* Renames our checkpoints of later steps than `step`: they are of a branch that the run left by resuming from an earlier step. No run
 * resumes from the new names; a warning names them. */
NODISCARD Status checkpoint_leave_branch(const char *output_dir, int64_t step);

/* A save that was killed while replacing a checkpoint may have left the old checkpoint under a hidden name: this renames it back. Call it
 * before looking for checkpoints, holding the lock of output_dir. */
NODISCARD Status checkpoint_restore(const char *output_dir);
/* If the checkpoint `path` is missing, but the old checkpoint of that name is hidden in the folder above, calls checkpoint_restore for that
 * folder. ERR_INVALID while a run writes the folder. */
NODISCARD Status checkpoint_restore_named(const char *path);
/* Removes the files that an interrupted or failed save left behind. */
NODISCARD Status checkpoint_clean(const char *output_dir);
/* Removes all checkpoints of ours. Warns of each checkpoint-N folder that stays because it isn't ours. */
NODISCARD Status checkpoint_remove_all(const char *output_dir);
/* Removes our oldest checkpoints of steps up to `step` until `keep` are left (0: keep all). `best` is never removed. */
NODISCARD Status checkpoint_prune(const char *output_dir, int64_t keep, int64_t best, int64_t step);

/* Counts our checkpoints in output_dir. count: only checkpoints of steps up to `step`; bytes: size of all checkpoints. */
typedef struct CheckpointsHeld {
    int64_t count, bytes;
} CheckpointsHeld;
NODISCARD Status checkpoint_held(const char *output_dir, int64_t step, CheckpointsHeld *out);
