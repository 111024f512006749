/* Samples of many prompts as JSON lines, ordered by row and sample: {"index", "sample", "id", "text", "ids", "stop_reason", "logprobs"}, or
 * {"index", "error"} for a bad row. A sample depends only on its prompt, its row's index, its number and the settings. */
#pragma once

#include "infer/answer.h"
#include "infer/prompt_file.h"

typedef struct RowsJob {
    int64_t        num; /* samples per prompt */
    int64_t        max_tokens;
    int64_t        rows, pages; /* as in DecoderOptions; rows 0: chosen for the device, at most the number of samples */
    SampleOptions  sample;      /* request and number are set for each sample */
    const StrList *stops;       /* empty if the model has no tokenizer */
    bool           ignore_eos, skip_bad;
    int            logprobs; /* number of likeliest tokens to report, as Answer.top */
    bool           shares;   /* rounds sizes up, so that later calls can use the same session */
    void          *context;
    Status (*take)(void *context, const StrBuf *lines); /* receives finished lines, in order */
    Status (*between)(void *context);                   /* called before each step, NULL: not at all; a failure ends the run */
} RowsJob;

typedef struct RowsProgress {
    int64_t rows;               /* number of the decoder's places */
    int64_t num_lines, written; /* lines of the whole file; lines taken or skipped so far */
    int64_t tokens, num_bad;    /* tokens generated, and lines with an error, in this run */
    int64_t at_once, most_at_once, num_preempted;
} RowsProgress;

typedef struct RowsRun RowsRun;

/* The arguments are borrowed. */
RowsRun            *rows_create(InferModel *infer, const PromptFile *prompts, const RowsJob *job);
void                rows_destroy(RowsRun *run);
const RowsProgress *rows_progress(const RowsRun *run);

/* Whether `line` is the next line, complete. If so, that line isn't generated. */
bool rows_skip(RowsRun *run, Str line);

/* Generates all lines that weren't skipped. Starts a session, unless the running session suits these lines. */
NODISCARD Status rows_run(RowsRun *run);
