/* Weights that are trained whole beside adapters (PEFT's modules_to_save): embeddings, heads and norms. */
#pragma once

#include "passes/compile.h"

/* The path of the weight's module: its tensor's name in a model folder, without the last part. NULL: the weight is several tensors there,
 * or a part of one. Allocated in the arena. */
const char *whole_path(Arena *arena, const Param *param);

/* The path that the head's module would have if the head weren't the embedding's matrix. NULL: the weight isn't both head and embedding. In
 * the arena. */
const char *whole_head_path(Arena *arena, const Param *param);

/* Whether lora->whole names a module: as in PEFT, its path ends with one of the names. matched[i] is set to 1 if name i fits; may be
 * NULL. */
bool whole_has(const LoraOptions *lora, const char *path, char *matched);

/* Marks the weights that lora->whole names. A tied embedding is first divided in two, unless lora->tie_whole. ERR_INVALID: a name fits no
 * module of the model; ERR_UNSUPPORTED: it fits a linear layer. */
NODISCARD Status whole_mark(Graph *graph, const LoraOptions *lora);
