/* Shared by checkpoint.c, checkpoint_save.c and checkpoint_states.c. */
#pragma once

#include "store/checkpoint.h"

#define MANIFEST_NAME "manifest.json"
#define STATE_NAME "run_state.json"
#define OPTIMIZER_NAME "optimizer.safetensors"
#define TUNING_NAME "tuning.txt"
#define PARTIAL_PREFIX ".checkpoint-" /* being written or removed */

bool checkpoint_get_hash(const JsonValue *object, const char *key, uint64_t *out);

/* ---- optimizer.safetensors (checkpoint_states.c) ---- */

/* What the manifest keeps of each tensor, so that a damaged one can be named. */
typedef struct TensorSum {
    const char *name;
    uint64_t    sum;
} TensorSum;
typedef struct TensorSums {
    TensorSum *items;
    size_t     count;
} TensorSums;

/* The hashes of a file's parts of FILE_HASH_PART_BYTES, which the manifest keeps of a file that several ranks wrote. */
typedef struct FileParts {
    uint64_t *hashes;
    size_t    count;
} FileParts;

int64_t          checkpoint_states_bytes(const Plan *plan);
NODISCARD Status checkpoint_states_save(Arena *arena, Session *session, Comm *comm, const char *path, TensorSums *out_sums);
NODISCARD Status checkpoint_states_load(const char *folder, Session *session, bool *out_has_scales);
/* Weights of the folder that the plan keeps in fp32 become the wider copies that optimizer.safetensors has of them. out: that file, which
 * the weights are read from until it is closed. */
NODISCARD Status checkpoint_states_widen(Arena *arena, const char *folder, const Plan *plan, StFile *weights, StFile **out);
/* The first tensor that has bytes in [begin, end) of a file; NULL: none. */
const char *checkpoint_states_at(Arena *arena, const char *path, size_t begin, size_t end);
/* The first tensor of a file that isn't as the manifest's {name: sum} says; NULL: none, or the file's header is damaged. */
const char *checkpoint_states_damaged(Arena *arena, const char *path, const JsonValue *sums);

/* Steps of OUTPUT's checkpoint-N folders, ascending, in the arena. */
NODISCARD Status checkpoint_list(Arena *arena, const char *output_dir, int64_t **out_steps, size_t *out_count);
