/* A model folder of a GGUF file: gguf_export backwards. */
#pragma once

#include "files/gguf.h"
#include "model/hf_model.h"

/* Whether the path is a file that begins as GGUF files do. */
NODISCARD Status gguf_is_file(const char *path, bool *out);

/* Writes config.json, tokenizer and weights of the file at `path` into `folder`, which is empty. quantised: what weights in blocks become,
 * F32 (every value as it is) or BF16; numbers keep their type. ERR_UNSUPPORTED names an architecture, a tensor or a setting that isn't
 * read. */
NODISCARD Status gguf_import(const char *path, DType quantised, const char *folder);

#define UNPACKED_PREFIX "gguf--" /* of the name of a folder that gguf_local_dir makes */

/* The folder of a model that is a GGUF file, made in the hub's cache the first time, its quantised weights in bf16; any other path stays.
 */
NODISCARD Status gguf_local_dir(Arena *arena, const char *path, const char **out_dir);
