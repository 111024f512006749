/* Shared by the files of the record readers. */
#pragma once

#include "data/record.h"

typedef enum FileFormat { FILE_TEXT, FILE_JSONL, FILE_JSON, FILE_CSV, FILE_TSV, FILE_PARQUET } FileFormat;

/* By the ending; *out_is_known false: none that we know, which means text. */
FileFormat file_format(const char *path, bool *out_is_known);

typedef struct PathList {
    Arena   *arena;
    char   **paths;
    int      count;
    uint32_t capacity;
} PathList;

/* Whether a file of a folder only tells about the dataset: README.md, LICENSE.txt, dataset_infos.json. */
bool file_is_about(const char *name);
void note_about(StrBuf *notes, const char *dir, const PathList *about);

/* Keeps the files of a split, where any tells one. All paths begin with `dir` and a slash. */
NODISCARD Status keep_split(PathList *list, const char *dir, const char *split, StrBuf *notes);

/* Appends to `notes` (may be NULL) a warning that `path` has no split of this name, and `why`. "" and train need none. */
void note_no_split(StrBuf *notes, const char *path, const char *split, const char *why);
