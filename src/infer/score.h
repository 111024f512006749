/* Scores: ln p of every token of many rows, each given the tokens before it in its row.
 *
 * A program's shape follows from a row's own length, and a row is alone in it where something of a batch is shared: a row's numbers don't
 * depend on the rows beside it, to the bit. */
#pragma once

#include "infer/infer_model.h"

typedef struct ScoreRow {
    int64_t line;       /* of the file, from 1 */
    size_t  first, num; /* tokens, in Scores */
    size_t  prompt;     /* of these, tokens of the prompt */
    bool    has_prompt, has_labels;
    size_t  first_label; /* of its num labels, in Scores: ids, -100 where one isn't trained */
    size_t  num_summed;  /* tokens that have a number, are no prompt's, and have no label of -100 */
    double  sum;         /* of theirs */
} ScoreRow;

typedef struct Scores {
    const char *name;     /* of the file */
    TokenIds    ids;      /* of all rows, one after the other */
    TokenIds    labels;   /* of rows that have them */
    float      *logprobs; /* of each; NaN: the first token of a row has none */
    int64_t     top;      /* how many likeliest tokens are told in place of each; 0: none are */
    int32_t    *top_ids;  /* (ids.len, top), the likeliest first; of the first token of a row undefined */
    float      *top_logprobs;
    ScoreRow   *rows;
    size_t      num_rows;
} Scores;
void scores_deinit(Scores *scores);

/* JSON Lines: rows {"text"}, {"prompt", "completion"} or {"ids"}, which may have what format_ids
 * reads; other fields don't count, empty lines are left out. Prompt and completion are encoded apart, as in training. most: tokens of a
 * row, 0: as many as the model was made for. ERR_INVALID says name:line. */
NODISCARD Status scores_read(InferModel *infer, const char *name, Str text, int64_t most, Scores *out);

/* Starts the session for these rows, and fills in the numbers. scores->top is set before, at most as many as the vocabulary has.
 * ERR_DIVERGED when one isn't finite: all are there all the same. */
NODISCARD Status scores_run(InferModel *infer, Scores *scores);

/* A line of JSON a row: ids, logprobs (null: none), with `top` top_ids and top_logprobs (lists; null: none), labels where the row has them
 * or a mask, of a prompt its number of tokens, how many are summed, their sum. */
void scores_write(const Scores *scores, StrBuf *out);
