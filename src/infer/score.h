/* Scores: ln p of every token of many rows, given the tokens before it in its row. A row's values don't depend on other rows, to the bit.
 * The row's own length decides the shape of its program. If the rows of a batch would share scales, each row has a batch of its own. */
#pragma once

#include "infer/infer_model.h"

typedef struct ScoreRow {
    int64_t line;       /* line number in the file, from 1 */
    size_t  first, num; /* range of its tokens in Scores.ids */
    size_t  prompt;     /* how many of these tokens are the prompt */
    bool    has_prompt, has_labels;
    size_t  first_label; /* index of its `num` labels in Scores.labels: the ids, or -100 if a token isn't trained */
    size_t  num_summed;  /* tokens that have a value, aren't in the prompt, and aren't labelled -100 */
    double  sum;         /* sum of the values of these tokens */
} ScoreRow;

typedef struct Scores {
    const char *name;     /* name of the file */
    TokenIds    ids;      /* ids of all rows, one row after the other */
    TokenIds    labels;   /* labels of the rows that have labels */
    float      *logprobs; /* ln p of each id; NaN for the first token of a row */
    int64_t     top;      /* how many of the likeliest tokens are reported per position; 0: none */
    int32_t    *top_ids;  /* (ids.len, top), the likeliest first; undefined for the first token of a row */
    float      *top_logprobs;
    ScoreRow   *rows;
    size_t      num_rows;
} Scores;
void scores_deinit(Scores *scores);

/* Reads JSON lines {"text"}, {"prompt", "completion"}, {"messages"} with or without "tools", or {"ids"}; the last may have the fields that
 * format_ids reads. Other fields are ignored, empty lines skipped. Prompt and completion are encoded separately, as in training; messages
 * are laid out as in training, with the assistant's turns as labels. most: tokens of a row; 0: the model's limit.
 * ERR_INVALID says name:line. */
NODISCARD Status scores_read(InferModel *infer, const char *name, Str text, int64_t most, Scores *out);

/* Starts the session for these rows and computes their values. scores->top must be set before, at most the vocabulary's size. ERR_DIVERGED:
 * some value isn't finite; all values are filled in nevertheless. */
NODISCARD Status scores_run(InferModel *infer, Scores *scores);

/* Appends a JSON line for each row: "ids", "logprobs" (null: no value); with `top` "top_ids" and "top_logprobs" (lists; null: none);
 * "labels" if the row has them; "prompt_tokens" if it has a prompt; "tokens" (the number of summed values) and "sum". */
void scores_write(const Scores *scores, StrBuf *out);
