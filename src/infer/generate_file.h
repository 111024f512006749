/* Samples of every prompt of a file, as lines of another: {"index", "sample", "id", "text", "ids", "stop_reason", "logprobs"}, or {"index",
 * "error"} of a bad row, in the order of rows and samples. A sample depends on its prompt, its row's index, its number and the settings
 * alone, so that a file that was interrupted, however often, ends up with the same bytes. */
#pragma once

#include "infer/answer.h"
#include "infer/prompt_file.h"

typedef struct GenerateFileJob {
    const char    *out; /* path of the file; see resumable_file.h */
    int64_t        num; /* samples of a prompt */
    int64_t        max_tokens;
    int64_t        rows, pages; /* of DecoderOptions; rows 0: as many as the device is good for, at most as there are samples */
    SampleOptions  sample;      /* request and number are set for each */
    const StrList *stops;
    bool           ignore_eos, skip_bad;
    int            logprobs;        /* as Answer.top */
    const char    *format, *recipe; /* as infer_use_format and infer_use_recipe had them; NULL: nothing was said */
    void          *context;
    bool (*is_stopped)(void *context); /* asked between steps; NULL: nobody stops it */
} GenerateFileJob;

/* Starts the session and generates what isn't there yet; progress is told on stderr. ERR_INTERRUPTED when it was stopped: what is there is
 * kept. ERR_INVALID where the file was begun with other settings. */
NODISCARD Status generate_file(InferModel *infer, const PromptFile *prompts, const GenerateFileJob *job);

/* What is compared before a file is gone on with: a JSON object. rows: places. */
void generate_file_settings(const InferModel *infer, const PromptFile *prompts, const GenerateFileJob *job, int64_t rows, StrBuf *out);
