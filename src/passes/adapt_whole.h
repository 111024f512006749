/* Weights that are trained whole beside adapters (PEFT's modules_to_save): embeddings, heads and norms. */
#pragma once

#include "passes/compile.h"

/* The module that a weight is of: the path that its tensor has in a model folder, without the last part. NULL: it is several tensors
 * there, or a part of one. It lives in the arena. */
const char *whole_path(Arena *arena, const Param *param);

/* The module that the head would be if it weren't the embedding's matrix; NULL: the weight isn't both. It lives in the arena. */
const char *whole_head_path(Arena *arena, const Param *param);

/* Whether a module is one that `whole` names: as in PEFT, if its path ends with one of the names. matched: of each name, set where it fits;
 * may be NULL. */
bool whole_has(const LoraOptions *lora, const char *path, char *matched);

/* Marks the weights of lora->whole. An embedding that is the head too is divided in two before, unless lora->tie_whole. ERR_INVALID names
 * what is no module of the model, or one that isn't trained so. */
NODISCARD Status whole_mark(Graph *graph, const LoraOptions *lora);
