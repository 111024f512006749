/* Makes a model folder from a GGUF file: the reverse of gguf_export. */
#pragma once

#include "files/gguf.h"
#include "model/hf_model.h"

/* *out: whether `path` is a file that begins as GGUF files do. */
NODISCARD Status gguf_is_file(const char *path, bool *out);

/* Writes config.json, tokenizer and weights of the file at `path` into `folder`, which is empty. quantised: the dtype for weights stored in
 * blocks, F32 (keeps every value) or BF16; other weights keep their type. ERR_UNSUPPORTED names an architecture, a tensor or a setting that
 * can't be read. */
NODISCARD Status gguf_import(const char *path, DType quantised, const char *folder);

#define UNPACKED_PREFIX "gguf--" /* begins the name of a folder that gguf_local_dir makes */

/* *out_dir: if `path` is a GGUF file, a folder in the hub's cache, into which the first call unpacks the file; quantised weights become
 * bf16 there. Any other path is returned as it is. */
NODISCARD Status gguf_local_dir(Arena *arena, const char *path, const char **out_dir);
