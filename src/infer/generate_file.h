/* Generates samples of every prompt of a file, as lines of another file (generate_rows.h). However often a run is interrupted, the finished
 * file has the same bytes. */
#pragma once

#include "infer/generate_rows.h"

typedef struct GenerateFileJob {
    const char *out;             /* path of the file that is written; see resumable_file.h */
    RowsJob     rows;            /* take, between and context are set by generate_file */
    const char *format, *recipe; /* the names given to infer_use_format and infer_use_recipe; NULL: not given */
    void       *context;
    bool (*is_stopped)(void *context); /* called between steps; NULL: never stopped */
} GenerateFileJob;

/* Starts the session and generates the lines that are missing; logs progress. ERR_INTERRUPTED: it was stopped, and the finished lines are
 * kept. ERR_INVALID: the file was begun with other settings. */
NODISCARD Status generate_file(InferModel *infer, const PromptFile *prompts, const GenerateFileJob *job);

/* Appends the JSON object of settings: a file is resumed only with the same settings. rows: number of the decoder's places. */
void generate_file_settings(const InferModel *infer, const PromptFile *prompts, const GenerateFileJob *job, int64_t rows, StrBuf *out);
