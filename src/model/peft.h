/* PEFT's adapter folders: adapter_config.json and adapter_model.safetensors, key for key. */
#pragma once

#include "model/hf_model.h"
#include "passes/compile.h"
#include "passes/peft_names.h"

typedef struct PeftAdapter {
    const char *dir;
    LoraOptions lora;       /* lora.modules: the modules that have tensors; all pointers point into the arena */
    JsonValue   config;     /* adapter_config.json */
    const char *base_model; /* base_model_name_or_path; NULL: absent */
    /* How the base was quantised while the adapter was trained, which PEFT's file doesn't say; NULL: as the base's folder is. */
    const WeightFormat *base_format;
} PeftAdapter;

/* Ends of an adapter's tensor names, after PEFT_PREFIX and the module's path. */
#define PEFT_END_A "." PEFT_A ".weight"
#define PEFT_END_B "." PEFT_B ".weight"
#define PEFT_END_MAGNITUDE ".lora_magnitude_vector"
#define PEFT_END_TOKENS ".token_adapter.trainable_tokens_delta"

/* The tensor of `module` whose name has this end; "": the module's path is the whole name. NULL: no such tensor, or `module` is NULL. */
const StTensor *peft_find(const StFile *file, const char *module, const char *end);
/* The path of the module in a tensor name that has this end, in the arena; NULL: the name has another end. */
const char *peft_module_of(Arena *arena, const char *tensor, const char *end);

NODISCARD Status peft_is_adapter_dir(const char *dir, bool *out); /* *out: whether the folder has an adapter_config.json */

/* Reads DIR/adapter_config.json, and which modules the tensors belong to. ERR_UNSUPPORTED names a setting that changes the result and isn't
 * supported. */
NODISCARD Status peft_open(Arena *arena, const char *dir, PeftAdapter *out);

/* Sets inout->modules to the model's linear layers that `selection` chooses, with rank and alpha of each. inout has the r and alpha of
 * layers without their own. `selection` is from the run's settings, with keys of adapter_config.json (target_modules and others), and must
 * outlive inout. all_count: ERR_INVALID names a name, number or expression that chooses no layer. */
NODISCARD Status peft_select(Arena *arena, const HfModel *model, const JsonValue *selection, bool all_count, LoraOptions *inout);

/* ERR_INVALID if no path of the model has one of `names` (layers_pattern) right before the number of a block. The message lists the names
 * that are there. */
NODISCARD Status peft_check_layers_pattern(const HfModel *model, const char *const *names, int count);

/* Warns if the adapter's base is a folder that exists here and isn't the model's: the adapter was trained on other weights. */
void peft_check_base(const PeftAdapter *adapter, const char *model_dir);

/* Checks that the adapter fits this model, whose weights are open. The modules that adapter_config.json names must have tensors, other
 * modules must have none; shapes must be the model's; copies of base weights that PEFT stored must equal the model's. */
NODISCARD Status peft_check_model(const PeftAdapter *adapter, const HfModel *model);

/* Opens the tensors of DIR, without PEFT's copies of base weights. */
NODISCARD Status peft_open_tensors(const char *dir, StFile **out);

/* The number of tensors of an adapter that a plan without training doesn't need: those of linear layers that its programs don't compute
 * with, such as a module that predicts later tokens. 0 if the plan trains: saving would lose these tensors, so none may go unread.
 * peft_check_model must have passed the adapter. */
NODISCARD size_t peft_num_unread(const Plan *plan, const StFile *file);

/* The name of an adapter's base for adapter_config.json. If `model` is a folder here, that is its full path, so that it is found from
 * anywhere. Else it is `model` unchanged, a name on the hub. */
const char *peft_base_name(Arena *arena, const char *model);

/* Writes adapter_config.json as PEFT does. base_model: peft_base_name of the base; NULL: write none. */
NODISCARD Status peft_write_config(const LoraOptions *lora, const char *base_model, const char *folder);

/* Writes the base's format to a file of ours beside adapter_config.json. NULL: writes nothing. */
NODISCARD Status peft_write_base_format(const WeightFormat *format, const char *folder);
NODISCARD Status peft_read_base_format(Arena *arena, const char *dir, const WeightFormat **out); /* *out: PeftAdapter.base_format */

/* The format that a run file's word names; "none" gives NULL. */
NODISCARD Status peft_parse_base_format(const char *word, const WeightFormat **out);
