/* Models and adapters as GGUF files, which llama.cpp and programs over it read. */
#pragma once

#include "base/pool.h"
#include "model/peft.h"

/* The type of a file's matrices. Norms, biases and positions are F32 in each. */
typedef enum GgufPreset {
#define GGUF_PRESET(name, word, type, file_type) GGUF_PRESET_##name,
#include "model/gguf_presets.def"
#undef GGUF_PRESET
    GGUF_NUM_PRESETS
} GgufPreset;

/* ERR_INVALID lists the words. Upper and lower case are the same. */
NODISCARD Status gguf_parse_preset(const char *word, GgufPreset *out);

/* Whether the format can say what the model computes. ERR_UNSUPPORTED names the family or setting that it can't. Weights may be closed. */
NODISCARD Status gguf_check_model(const HfModel *model);

/* dir: what messages call the folder of the tokenizer. name: general.name of the file. Writes `path`, weights and tokenizer, whole or not
 * at all. Weights are opened. ERR_UNSUPPORTED names what the format can't say; what it says otherwise, or readers do, are notes of
 * log_note. pool may be NULL. */
NODISCARD Status gguf_export(HfModel *model, const char *dir, const char *name, GgufPreset preset, const char *path, ThreadPool *pool);

/* Writes the adapter alone, for a file of its base. preset: F32, F16, BF16 or Q8_0. */
NODISCARD Status gguf_export_adapter(HfModel *base, const PeftAdapter *adapter, GgufPreset preset, const char *path);
