/* Prompts from a file of JSON lines: {"prompt": TEXT}, {"messages": [...], "tools": [...]} or {"ids": [...]}, each with optional fields
 * "id", "adapter" and "max_tokens". */
#pragma once

#include "infer/infer_model.h"

typedef struct PromptRow {
    int64_t     index;      /* number of its line in the file, from 0 */
    size_t      first, num; /* range of its tokens in PromptFile.ids */
    const char *id;         /* JSON; NULL: the row has none */
    int         adapter;    /* as DecodeRequest.adapter */
    int64_t     max_tokens; /* 0: not given */
    const char *error;      /* why the row can't be used; NULL: it is fine */
} PromptRow;

typedef struct PromptFile {
    Arena       arena;
    const char *name;
    TokenIds    ids; /* ids of all rows, one row after the other */
    PromptRow  *rows;
    size_t      num_rows;
    int64_t     longest; /* tokens of the longest prompt */
    uint64_t    hash;    /* hash of all rows: ids, index and fields */
} PromptFile;

typedef struct PromptOptions {
    bool             ask;       /* each prompt is a question, which the chat template renders */
    const char      *system;    /* system message before such a question, or NULL */
    const JsonValue *variables; /* further variables of the template, or NULL */
    bool             skip_bad;  /* a bad line becomes a row with an error, instead of a failure */
} PromptOptions;

/* Reads and checks all lines; empty ones are skipped. ERR_INVALID says name:line. *out needs prompt_file_deinit in every case. */
NODISCARD Status prompt_file_read(InferModel *infer, const char *name, Str text, const PromptOptions *options, PromptFile *out);
void             prompt_file_deinit(PromptFile *file);
