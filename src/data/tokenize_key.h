/* The cache key of a dataset. */
#pragma once

#include "data/tokenize.h"

typedef struct DatasetKey {
    uint64_t hash;
    StrBuf   json;       /* the text that is hashed: a JSON object */
    StrBuf   file_notes; /* lines of text: which files of a folder were taken */
    char   **paths;      /* in the arena */
    int      num_paths;
} DatasetKey;

/* Finds and hashes the files. */
NODISCARD Status dataset_key(Arena *arena, const TokenizeJob *job, DatasetKey *out);
void             dataset_key_deinit(DatasetKey *key);
