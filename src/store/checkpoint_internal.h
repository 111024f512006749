/* Shared by the files of checkpoints. */
#pragma once

#include "store/checkpoint.h"

#define MANIFEST_NAME "manifest.json"
#define STATE_NAME "run_state.json"
#define OPTIMIZER_NAME "optimizer.safetensors"
#define TUNING_NAME "tuning.txt"

bool checkpoint_get_hash(const JsonValue *object, const char *key, uint64_t *out);

/* ---- optimizer.safetensors (checkpoint_states.c) ---- */

/* The checksum of one tensor. The manifest keeps it so that a message can name the damaged tensor. */
typedef struct TensorSum {
    const char *name;
    uint64_t    sum;
} TensorSum;
typedef struct TensorSums {
    TensorSum *items;
    size_t     count;
} TensorSums;

int64_t          checkpoint_states_bytes(const Plan *plan);
NODISCARD Status checkpoint_states_save(Arena *arena, Session *session, Comm *comm, const char *path, TensorSums *out_sums);
NODISCARD Status checkpoint_states_load(const char *folder, Session *session, bool *out_has_scales);
/* Replaces tensors of `weights` that the plan keeps in fp32 by their wider copies in optimizer.safetensors. *out is that
 * file: close it only after the weights have been read. */
NODISCARD Status checkpoint_states_widen(Arena *arena, const char *folder, const Plan *plan, StFile *weights, StFile **out);
/* The first tensor that has bytes in [begin, end) of a file; NULL: none. */
const char *checkpoint_states_at(Arena *arena, const char *path, size_t begin, size_t end);
/* The first tensor whose checksum differs from the one in the manifest's {name: sum}; NULL: none, or the file's header is damaged. */
const char *checkpoint_states_damaged(Arena *arena, const char *path, const JsonValue *sums);

NODISCARD Status checkpoint_write_state(const char *folder, const TrainState *state);

/* ---- the output folder (checkpoint_folder.c) ---- */

/* Steps of OUTPUT's checkpoint-N folders, ascending, in the arena. */
NODISCARD Status checkpoint_list(Arena *arena, const char *output_dir, int64_t **out_steps, size_t *out_count);
/* The N of a path that ends in checkpoint-N, and *out_dir, the folder that contains it; -1: the path has another name. */
int64_t checkpoint_step_of(Arena *arena, const char *path, const char **out_dir);
/* The hidden folder that a step's checkpoint is written into. checkpoint_publish then gives it the checkpoint's name. */
const char      *checkpoint_partial_path(Arena *arena, const char *output_dir, int64_t step);
NODISCARD Status checkpoint_publish(const SaveContext *context, int64_t step);
