/* PEFT adapter folders: adapter_config.json and adapter_model.safetensors, key for key. */
#pragma once

#include "model/hf_model.h"
#include "passes/compile.h"
#include "passes/peft_names.h"

typedef struct PeftAdapter {
    const char *dir;
    LoraOptions lora;       /* with the modules that have tensors; what it points to lives in the arena */
    JsonValue   config;     /* adapter_config.json */
    const char *base_model; /* base_model_name_or_path; NULL: not said */
    /* How the base was quantised while the adapter was trained, which PEFT's file doesn't say; NULL: not otherwise than its folder is. */
    const WeightFormat *base_format;
} PeftAdapter;

/* Ends of an adapter's tensor names, behind PEFT_PREFIX and the module's path. */
#define PEFT_END_A "." PEFT_A ".weight"
#define PEFT_END_B "." PEFT_B ".weight"
#define PEFT_END_MAGNITUDE ".lora_magnitude_vector"
#define PEFT_END_TOKENS ".token_adapter.trainable_tokens_delta"

/* The tensor of a module with that end; "": the module's path is the whole name. NULL: there is none, or `module` is NULL. */
const StTensor *peft_find(const StFile *file, const char *module, const char *end);
/* The path of the module that a tensor with that end is of, in the arena; NULL: it has another name. */
const char *peft_module_of(Arena *arena, const char *tensor, const char *end);

NODISCARD Status peft_is_adapter_dir(const char *dir, bool *out); /* it holds an adapter_config.json */

/* Reads DIR/adapter_config.json and which modules the tensors belong to. ERR_UNSUPPORTED names a setting that would change the result and
 * that we don't have. */
NODISCARD Status peft_open(Arena *arena, const char *dir, PeftAdapter *out);

/* Of a run's settings: the linear layers of the model that `selection` means, with rank and alpha of each, as inout->modules, over its r
 * and alpha. `selection` has keys as adapter_config.json has them, target_modules and others, and must last. all_count: ERR_INVALID names a
 * name, number or expression that means no layer. */
NODISCARD Status peft_select(Arena *arena, const HfModel *model, const JsonValue *selection, bool all_count, LoraOptions *inout);

/* ERR_INVALID, with the names that there are, if none of layers_pattern stands before the number of a block of the model. */
NODISCARD Status peft_check_layers_pattern(const HfModel *model, const char *const *names, int count);

/* Warns when the adapter names a folder that is here and isn't the model's: it was trained on other weights. */
void peft_check_base(const PeftAdapter *adapter, const char *model_dir);

/* Whether the adapter is one of this model, whose weights are open: the modules that adapter_config.json names have tensors, no others
 * have, their shapes are the model's, and so are the weights of the base that PEFT put beside them. */
NODISCARD Status peft_check_model(const PeftAdapter *adapter, const HfModel *model);

/* The tensors of DIR but for copies of the base's. */
NODISCARD Status peft_open_tensors(const char *dir, StFile **out);

/* How many tensors of an adapter that peft_check_model has passed a plan without training needs none of: those of linear layers that its
 * programs don't compute with, as a module that predicts tokens further on. 0 where the plan trains: it would lose them. */
NODISCARD size_t peft_num_unread(const Plan *plan, const StFile *file);

/* What an adapter's base is called in adapter_config.json: the full path of a folder that is here, so that it is found from anywhere,
 * else `model` as it stands, a name on the hub. */
const char *peft_base_name(Arena *arena, const char *model);

/* Writes adapter_config.json as PEFT does. base_model: peft_base_name of what it adapts; NULL: not said. */
NODISCARD Status peft_write_config(const LoraOptions *lora, const char *base_model, const char *folder);

/* Writes the base's format, a file of ours beside adapter_config.json. NULL: nothing is to be said. */
NODISCARD Status peft_write_base_format(const WeightFormat *format, const char *folder);
NODISCARD Status peft_read_base_format(Arena *arena, const char *dir, const WeightFormat **out); /* as PeftAdapter has it */

/* The format of a word, as run files have it: "none" is NULL. */
NODISCARD Status peft_parse_base_format(const char *word, const WeightFormat **out);
