/* Writes models and adapters as GGUF files, which llama.cpp and programs based on it read. */
#pragma once

#include "base/pool.h"
#include "model/peft.h"

/* The type of a file's matrices. Norms, biases and positions are always F32. */
typedef enum GgufPreset {
#define GGUF_PRESET(name, word, type, file_type) GGUF_PRESET_##name,
#include "model/gguf_presets.def"
#undef GGUF_PRESET
    GGUF_NUM_PRESETS
} GgufPreset;

/* ERR_INVALID lists the words. Case doesn't matter. */
NODISCARD Status gguf_parse_preset(const char *word, GgufPreset *out);

/* Checks that the format can express what the model computes. ERR_UNSUPPORTED names a family or setting that it can't express. The weights
 * needn't be open. */
NODISCARD Status gguf_check_model(const HfModel *model);

/* Writes `path`, with weights and tokenizer, whole or not at all. Opens the weights. dir: what messages call the tokenizer's folder. name:
 * general.name of the file. ERR_UNSUPPORTED names what the format can't express. Notes (log_note) tell what the file or its readers do
 * differently. pool may be NULL. */
NODISCARD Status gguf_export(HfModel *model, const char *dir, const char *name, GgufPreset preset, const char *path, ThreadPool *pool);

/* Writes only the adapter, for use with a file of its base. preset: F32, F16, BF16 or Q8_0. */
NODISCARD Status gguf_export_adapter(HfModel *base, const PeftAdapter *adapter, GgufPreset preset, const char *path);
