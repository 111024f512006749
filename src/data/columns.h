/* Columns: what rows of a dataset give for inputs of a program's own, a number, or several, for each token. */
#pragma once

#include "data/format.h"
#include "data/shard.h"

/* Numbers one after the other. */
typedef struct NumberList {
    float *data; /* heap */
    size_t len, capacity;
} NumberList;
void number_list_deinit(NumberList *list);

/* What one row gives: of each column of DatasetOptions.inputs, in order, numbers for so many tokens. */
typedef struct RowNumbers {
    size_t  first;                      /* in the list */
    int64_t tokens[SHARD_MOST_COLUMNS]; /* ALL_TOKENS: one number, which counts for each */
} RowNumbers;
enum { ALL_TOKENS = -1 };

/* How many numbers a token has of each column, as the first row says that has any; those that are known stay, 0: it isn't known yet.
 * ERR_INVALID: the row lacks a column. */
NODISCARD Status columns_detect(const DatasetOptions *options, const JsonValue *row, RowFormat *out);
bool             columns_are_known(const DatasetOptions *options, const RowFormat *format);
/* No row has any: 1 then. */
void columns_settle(const DatasetOptions *options, RowFormat *format);

/* Appends the numbers of a row: a number, or a list with one for each token, or with a list of several for each; null: none is given, NaN.
 * A text that is JSON counts as what it says. ERR_INVALID names the column. */
NODISCARD Status columns_read(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row, NumberList *list,
                              RowNumbers *out);

/* Appends the numbers of all columns for each of the row's tokens, in the order of shard_writer_append_numbers. ERR_INVALID: a list has
 * another length. */
NODISCARD Status columns_place(const DatasetOptions *options, const RowFormat *format, const NumberList *from, const RowNumbers *row,
                               int64_t num_tokens, NumberList *out);

/* Names and sizes, as shards have them; (SHARD_MOST_COLUMNS). */
void columns_describe(const DatasetOptions *options, const RowFormat *format, ShardColumn *out);
