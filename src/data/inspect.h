/* Looks at a dataset as training will see it: ids and mask of each row, and sums over all rows. */
#pragma once

#include "data/loader.h"
#include "data/tokenize.h"

enum { INSPECT_BUCKETS = 24 }; /* bucket i: lengths 2^i .. 2^(i+1) - 1; the last bucket also counts all longer rows */

typedef struct InspectRow {
    int64_t        row;  /* index of the row, from 0 */
    int64_t        part; /* number of the part, from 1, if the text is too long to be given whole; else 0 */
    const char    *path;
    int64_t        line; /* line of the file, from 1; in a parquet file: the row */
    const int32_t *ids;
    const uint8_t *mask; /* one byte per id; 1: trained */
    size_t         count;
    int64_t        num_trained;
    const char    *error; /* NULL, or why the row is bad; then ids, mask and counts are empty */
} InspectRow;

/* Called for each row; returning false stops. What `row` points to is valid during the call. */
typedef bool (*InspectRowFn)(void *context, const InspectRow *row);

/* How a training run on this dataset alone would lay out its rows. */
typedef struct InspectPacking {
    int32_t     seq_len;   /* 0: packing isn't computed */
    bool        is_padded; /* one sample per row (LOADER_PADDED) */
    LongSamples long_samples;
} InspectPacking;

typedef struct InspectSummary {
    char     file_notes[1024]; /* lines of text: which files of a folder are read */
    char     format[256];
    int64_t  num_rows, num_bad_rows, num_untrained, num_without_stop, num_without_calls, num_empty, num_unprinted;
    char     first_unprinted[512]; /* file and line of the first message whose content the template doesn't print */
    FieldSet unused;               /* fields of rows that aren't used */
    int64_t  num_tokens, num_trained;
    int64_t  shortest, longest; /* tokens of the shortest and the longest row */
    int64_t  histogram[INSPECT_BUCKETS];
    int64_t  num_too_long;       /* rows longer than seq_len, to which long_samples applies */
    int64_t  packed_rows;        /* rows of seq_len tokens after packing */
    double   packing_efficiency; /* 0..1 */
} InspectSummary;

/* Reads at most max_rows rows (0: all), in order, on this thread. job->cache_dir, num_threads and shard_tokens are
 * ignored. `each` may be NULL. A very long text is one row, which `each` gets in parts. */
NODISCARD Status inspect_dataset(const TokenizeJob *job, int64_t max_rows, InspectPacking packing, InspectRowFn each, void *context,
                                 InspectSummary *out_summary);
