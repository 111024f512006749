/* Which rows of its files a dataset takes: `split: train[:20%]`, `samples: 1000`. */
#pragma once

#include "data/format.h"
#include "data/record.h"

/* One end of a slice: rows, or percent of them; negative: from the end. */
typedef struct SplitEnd {
    bool    is_set, is_percent;
    int64_t value;
} SplitEnd;

/* "train", "train[100:200]", "train[:20%]", "train[-10%:]", as the datasets library writes them. */
typedef struct Split {
    char     name[128];
    SplitEnd from, to;
} Split;

/* NULL or "": no name and no slice. ERR_INVALID for a bracket that is no slice, and for sums and roundings. */
NODISCARD Status split_parse(const char *text, Split *out);

/* Opens the files' rows at the first that the dataset takes. *out_most: how many it takes at most; 0: all that follow.
 * ERR_INVALID if its slice holds none. Percent and ends counted from behind need the number of rows: all files are read for it. */
NODISCARD Status dataset_reader_open(const DatasetOptions *dataset, char *const *paths, int count, Reader **out_reader, int64_t *out_most);
