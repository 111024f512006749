/* Shared by the files that import GGUF. */
#pragma once

#include "model/gguf_import.h"
#include "model/gguf_internal.h"

typedef struct Import {
    Arena             arena;
    const char       *path, *folder;
    GgufFile         *file;
    const GgufFamily *family;
    DType             quantised;
} Import;

/* The numeric value of the key FAMILY.name; `fallback` if the file doesn't have the key. */
double gguf_import_number(Import *import, const char *name, double fallback);

/* Writes config.json. */
NODISCARD Status gguf_import_config(Import *import);
/* Writes tokenizer.json, tokenizer_config.json, generation_config.json; nothing if the file has no tokenizer. */
NODISCARD Status gguf_import_tokenizer(Import *import);
