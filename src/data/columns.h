/* Columns: fields of dataset rows with the values of a program's own inputs, one number or several for each token. */
#pragma once

#include "data/format.h"
#include "data/shard.h"

/* A growing array of numbers. */
typedef struct NumberList {
    float *data; /* heap */
    size_t len, capacity;
} NumberList;
void number_list_deinit(NumberList *list);

/* Where one row's numbers are in a NumberList: column after column, in the order of DatasetOptions.inputs. */
typedef struct RowNumbers {
    size_t  first;                      /* index of the row's first number in the list */
    int64_t tokens[SHARD_MOST_COLUMNS]; /* tokens that a column has numbers for; ALL_TOKENS: one number, used for every token */
} RowNumbers;
enum { ALL_TOKENS = -1 };

/* Sets out->input_sizes, the numbers per token of each column, where they are still 0 (unknown) and this row shows them.
 * ERR_INVALID: the row lacks a column, or has more than OWN_MOST_SIZE numbers for a token. */
NODISCARD Status columns_detect(const DatasetOptions *options, const JsonValue *row, RowFormat *out);
bool             columns_are_known(const DatasetOptions *options, const RowFormat *format);
/* Sets sizes that are still unknown to 1. Call it after all rows were looked at: then no row has a number in these columns. */
void columns_settle(const DatasetOptions *options, RowFormat *format);

/* Appends a row's numbers to the list. A field is a number, a list of one number per token, or a list that has one list per token; a null
 * in a list becomes NaN. A field that is JSON text is parsed. ERR_INVALID names the column. */
NODISCARD Status columns_read(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row, NumberList *list,
                              RowNumbers *out);

/* Appends the numbers of all columns for each of the row's tokens, in the order of shard_writer_append_numbers. ERR_INVALID: a list's
 * length isn't num_tokens. */
NODISCARD Status columns_place(const DatasetOptions *options, const RowFormat *format, const NumberList *from, const RowNumbers *row,
                               int64_t num_tokens, NumberList *out);

/* Sets out[0..num_inputs): the columns' names and sizes, as shards store them. */
void columns_describe(const DatasetOptions *options, const RowFormat *format, ShardColumn *out);
