/* Shared by checkpoint.c and checkpoint_save.c. */
#pragma once

#include "train/checkpoint.h"

#define MANIFEST_NAME  "manifest.json"
#define STATE_NAME     "run_state.json"
#define OPTIMIZER_NAME "optimizer.safetensors"
#define TUNING_NAME    "tuning.txt"
#define PARTIAL_PREFIX ".checkpoint-" /* being written or removed */

/* The optimizer's flat values, bucket by bucket. Returns how many. */
enum { CHECKPOINT_MAX_VALUES = 64 };
int checkpoint_values(const Plan *plan, const PlanEntry *out[CHECKPOINT_MAX_VALUES]);
#define CHECKPOINT_LAYOUT "segments" /* beside them: where each trained parameter lies, plan->segments */

const char *checkpoint_path(Arena *arena, const char *output_dir, int64_t step);

/* Steps of OUTPUT's checkpoint-N folders, ascending, in the arena. */
NODISCARD Status checkpoint_list(Arena *arena, const char *output_dir, int64_t **out_steps, size_t *out_count);
