/* What safetensors.c (reading bytes) and safetensors_open.c (opening files and folders) share. */
#pragma once

#include "files/safetensors.h"

typedef struct Shard {
    FileMap     map;
    const char *path;
} Shard;

struct StFile {
    Arena        arena;
    const char  *path;
    Shard       *shards;
    size_t       num_shards;
    StTensor    *tensors;
    size_t       count, capacity;
    uint32_t    *table; /* 1 + index by name; open addressing */
    size_t       table_size;
    const char **metadata; /* key, value, ... */
    size_t       num_metadata;
};

StFile *st_new(const char *path);

/* Appends the tensors of one file's bytes. path must live as long as `file`. */
NODISCARD Status st_read_bytes(StFile *file, const char *path, const FileMap *map);

/* Makes st_find work; after all files are read. A name in two files is an error. */
NODISCARD Status st_build_table(StFile *file);
