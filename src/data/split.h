/* Which rows of its files a dataset takes: `split: train[:20%]`, `samples: 1000`. */
#pragma once

#include "data/format.h"
#include "data/record.h"

/* One end of a slice: a number of rows, or percent of all rows; negative: counted from the last row. */
typedef struct SplitEnd {
    bool    is_set, is_percent;
    int64_t value;
} SplitEnd;

/* A parsed split: "train", "train[100:200]", "train[:20%]", "train[-10%:]", as the datasets library writes them. */
typedef struct Split {
    char     name[128];
    SplitEnd from, to;
} Split;

/* `text` NULL or "": no name and no slice. ERR_INVALID: a bracket that is no slice, a sum (train+test), or a rounding in parentheses. */
NODISCARD Status split_parse(const char *text, Split *out);

/* Opens a reader at the first row that the dataset takes. *out_most: the most rows it takes; 0: all that follow. ERR_INVALID: its slice
 * holds no row. For percentages, and ends counted from the last row, all files are read to count their rows. */
NODISCARD Status dataset_reader_open(const DatasetOptions *dataset, char *const *paths, int count, Reader **out_reader, int64_t *out_most);
