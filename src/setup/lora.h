/* The LoRA settings of a run: those of its run file, or of the adapter that it goes on from. */
#pragma once

#include "config/config.h"
#include "model/hf_model.h"
#include "passes/compile.h"
#include "text/tokenizer.h"

/* Where the run goes on from an adapter: what that has of rank, scale and layers becomes the config's, in place of what the run file says,
 * which has no effect then (options.def); its dropout and the format of its base where the run file says none. After a config is loaded,
 * before anything reads it. ERR_UNSUPPORTED names a setting of adapter_config.json that we don't have. */
NODISCARD Status setup_adapter(Config *config);

/* Whether the adapter that the run goes on from is one of this model. ERR_INVALID, ERR_UNSUPPORTED. */
NODISCARD Status setup_check_adapter(Arena *arena, const Config *config, const HfModel *model);

/* Whether each id that the tokenizer of `dir`, if there is one, shares with the run's stands for the same token. ERR_INVALID. */
NODISCARD Status setup_check_tokens(Arena *arena, const char *dir, const Tokenizer *run);

/* out->enabled false: none. What it points to lives in `arena`. */
NODISCARD Status setup_lora(Arena *arena, const Config *config, const HfModel *model, LoraOptions *out);
