/* Shared by the files of the record readers. */
#pragma once

#include "data/record.h"

typedef enum FileFormat { FILE_TEXT, FILE_JSONL, FILE_JSON, FILE_CSV, FILE_TSV, FILE_PARQUET } FileFormat;

/* The format by the file's ending. *out_is_known false: the ending is unknown, and the file counts as text. */
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

/* Keeps only the files of a split, if names of files or folders show their splits. All paths begin with `dir` and a slash. */
NODISCARD Status keep_split(PathList *list, const char *dir, const char *split, StrBuf *notes);

/* Appends to `notes` (may be NULL) a warning that `path` has no split of this name, and `why`. No warning for "" and train. */
void note_no_split(StrBuf *notes, const char *path, const char *split, const char *why);
