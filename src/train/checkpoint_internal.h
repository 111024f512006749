/* Shared by checkpoint.c and checkpoint_save.c. */
#pragma once

#include "train/checkpoint.h"

#define MANIFEST_NAME  "manifest.json"
#define STATE_NAME     "run_state.json"
#define OPTIMIZER_NAME "optimizer.safetensors"
#define TUNING_NAME    "tuning.txt"
#define PARTIAL_PREFIX ".checkpoint-" /* being written or removed */

/* Flat optimizer values that a plan may have. */
extern const char *const checkpoint_values[];
enum { CHECKPOINT_NUM_VALUES = 3 };
#define CHECKPOINT_LAYOUT "segments" /* beside them: where each trained parameter lies, plan->segments */

const char *checkpoint_path(Arena *arena, const char *output_dir, int64_t step);

/* Steps of OUTPUT's checkpoint-N folders, ascending, in the arena. */
NODISCARD Status checkpoint_list(Arena *arena, const char *output_dir, int64_t **out_steps, size_t *out_count);
