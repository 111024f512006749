/* Prompts of a file of JSON Lines: {"prompt": TEXT}, {"messages": [...], "tools": [...]} or {"ids": [...]}, and perhaps "id", "adapter" and
 * "max_tokens", a line. */
#pragma once

#include "infer/infer_model.h"

typedef struct PromptRow {
    int64_t     index;      /* of its line, from 0 */
    size_t      first, num; /* its tokens, in PromptFile */
    const char *id;         /* JSON; NULL: the row has none */
    int         adapter;    /* as DecodeRequest.adapter */
    int64_t     max_tokens; /* 0: the row doesn't say */
    const char *error;      /* why nothing can be generated after it; NULL: it is fine */
} PromptRow;

typedef struct PromptFile {
    Arena       arena;
    const char *name;
    TokenIds    ids; /* of all rows, one after the other */
    PromptRow  *rows;
    size_t      num_rows;
    int64_t     longest; /* tokens of the longest prompt */
    uint64_t    hash;    /* of all of it, as the model is fed it */
} PromptFile;

typedef struct PromptOptions {
    bool             ask;       /* a prompt is a question, which the chat template lays out */
    const char      *system;    /* the system message before such a question, or NULL */
    const JsonValue *variables; /* of the template, or NULL */
    bool             skip_bad;  /* a bad line becomes a row with an error */
} PromptOptions;

/* All lines are read and checked; empty ones are left out. ERR_INVALID says name:line. *out needs prompt_file_deinit in every case. */
NODISCARD Status prompt_file_read(InferModel *infer, const char *name, Str text, const PromptOptions *options, PromptFile *out);
void             prompt_file_deinit(PromptFile *file);
