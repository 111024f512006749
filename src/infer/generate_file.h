/* Samples of every prompt of a file, as lines of another (generate_rows.h). A file that was interrupted, however often, ends up with the
 * same bytes. */
#pragma once

#include "infer/generate_rows.h"

typedef struct GenerateFileJob {
    const char *out;             /* path of the file; see resumable_file.h */
    RowsJob     rows;            /* its functions and their context are set here */
    const char *format, *recipe; /* as infer_use_format and infer_use_recipe had them; NULL: nothing was said */
    void       *context;
    bool (*is_stopped)(void *context); /* asked between steps; NULL: nobody stops it */
} GenerateFileJob;

/* Starts the session and generates what isn't there yet; progress is told on stderr. ERR_INTERRUPTED when it was stopped: what is there is
 * kept. ERR_INVALID where the file was begun with other settings. */
NODISCARD Status generate_file(InferModel *infer, const PromptFile *prompts, const GenerateFileJob *job);

/* What is compared before a file is gone on with: a JSON object. rows: places. */
void generate_file_settings(const InferModel *infer, const PromptFile *prompts, const GenerateFileJob *job, int64_t rows, StrBuf *out);
