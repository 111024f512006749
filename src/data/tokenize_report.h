/* What a dataset's folder stores about its complete shards: progress.json while the dataset is made, dataset.json when it is whole. */
#pragma once

#include "data/tokenize.h"

typedef struct DoneShards {
    int      count;
    int64_t *ends; /* rows read up to the end of each shard; in an arena */
    uint32_t capacity;
    int64_t  num_rows; /* rows of the units written so far */
} DoneShards;

/* Adds a shard that ends with the rows written so far. */
void done_shards_add(Arena *arena, DoneShards *done);

NODISCARD Status tokenize_report_save(const char *path, const TokenizeReport *report, const DoneShards *done);
/* false: the file can't be read, or something is missing in it; then *report and *done are unusable. report->dir stays. */
bool tokenize_report_load(Arena *arena, const char *path, TokenizeReport *report, DoneShards *done);
