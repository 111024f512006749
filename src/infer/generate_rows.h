/* Samples of many prompts, as lines of JSON: {"index", "sample", "id", "text", "ids", "stop_reason", "logprobs"}, or {"index", "error"} of
 * a bad row, in the order of rows and samples. A sample depends on its prompt, its row's index, its number and the settings alone. */
#pragma once

#include "infer/answer.h"
#include "infer/prompt_file.h"

typedef struct RowsJob {
    int64_t        num; /* samples of a prompt */
    int64_t        max_tokens;
    int64_t        rows, pages; /* of DecoderOptions; rows 0: as many as the device is good for, at most as there are samples */
    SampleOptions  sample;      /* request and number are set for each */
    const StrList *stops;       /* none where the model has no tokenizer */
    bool           ignore_eos, skip_bad;
    int            logprobs; /* as Answer.top */
    bool           shares;   /* memory for a little more, so that the session may serve the next call too */
    void          *context;
    Status (*take)(void *context, const StrBuf *lines); /* lines that are done, the next in order */
    Status (*between)(void *context);                   /* before a step; what isn't OK ends it */
} RowsJob;

typedef struct RowsProgress {
    int64_t rows;               /* places */
    int64_t num_lines, written; /* of all; that are taken, or were skipped */
    int64_t tokens, num_bad;    /* of this run; num_bad: lines with an error */
    int64_t at_once, most_at_once, num_preempted;
} RowsProgress;

typedef struct RowsRun RowsRun;

/* Everything is borrowed. */
RowsRun            *rows_create(InferModel *infer, const PromptFile *prompts, const RowsJob *job);
void                rows_destroy(RowsRun *run);
const RowsProgress *rows_progress(const RowsRun *run);

/* Whether this is the next line, whole: then it isn't made. */
bool rows_skip(RowsRun *run, Str line);

/* Makes all other lines, with a session that it starts unless the one that is there serves. */
NODISCARD Status rows_run(RowsRun *run);
