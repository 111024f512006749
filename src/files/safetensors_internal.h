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
    uint32_t    *table; /* hash table from name to 1 + index of its tensor; 0: empty slot */
    size_t       table_size;
    const char **metadata; /* key, value, ... */
    size_t       num_metadata;
};

StFile *st_new(const char *path);

/* Appends the tensors of one file, whose bytes are `map`. path must live as long as `file`. */
NODISCARD Status st_read_bytes(StFile *file, const char *path, const FileMap *map);

/* Builds the table of st_find. Call it after all files are read. A name in two files is an error. */
NODISCARD Status st_build_table(StFile *file);
