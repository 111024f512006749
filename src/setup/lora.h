/* The LoRA settings of a run: from its run file, or from the adapter that it continues. */
#pragma once

#include "config/config.h"
#include "model/hf_model.h"
#include "passes/compile.h"
#include "text/tokenizer.h"

/* If the run continues an adapter, takes its settings into the config. Rank, scale and layers replace those of the run file, which have
 * no effect then (options.def). Dropout and the format of the base are taken if the run file doesn't set them. Call it after loading a
 * config, before anything reads it. ERR_UNSUPPORTED names a setting of adapter_config.json that isn't implemented. */
NODISCARD Status setup_adapter(Config *config);

/* Checks that the adapter that the run continues belongs to this model. ERR_INVALID, ERR_UNSUPPORTED. */
NODISCARD Status setup_check_adapter(Arena *arena, const Config *config, const HfModel *model);

/* Checks that each id of both the tokenizer in `dir` and the run's tokenizer stands for the same token in both; else ERR_INVALID. OK if
 * `dir` has no tokenizer. */
NODISCARD Status setup_check_tokens(Arena *arena, const char *dir, const Tokenizer *run);

/* The run's LoRA options; out->enabled false: no LoRA. Pointers in *out are into `arena` or `config`. */
NODISCARD Status setup_lora(Arena *arena, const Config *config, const HfModel *model, LoraOptions *out);
