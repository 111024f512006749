/* Looking at a dataset as training will see it: ids, mask and text of each row, and what all of it adds up to. */
#pragma once

#include "data/loader.h"
#include "data/tokenize.h"

enum { INSPECT_BUCKETS = 24 }; /* lengths 2^i .. 2^(i+1) - 1; the last takes all above */

typedef struct InspectRow {
    int64_t        row;  /* from 0 */
    int64_t        part; /* from 1, of a text that is too long to come at once; 0: it is whole */
    const char    *path;
    int64_t        line; /* or row of a parquet file */
    const int32_t *ids;
    const uint8_t *mask; /* a byte an id: 1 trained */
    size_t         count;
    int64_t        num_trained;
    const char    *error; /* NULL, or why the row is bad: the rest is then empty */
} InspectRow;

/* false stops. What row points to is valid during the call. */
typedef bool (*InspectRowFn)(void *context, const InspectRow *row);

/* How a run of this dataset alone lays its rows out. */
typedef struct InspectPacking {
    int32_t     seq_len;   /* 0: no figures are wanted */
    bool        is_padded; /* a sample a sequence */
    LongSamples long_samples;
} InspectPacking;

typedef struct InspectSummary {
    char    file_notes[1024]; /* lines: which files of a folder are read */
    char    format[256];
    int64_t num_rows, num_bad_rows, num_untrained, num_without_stop, num_without_calls, num_empty, num_unprinted;
    char    first_unprinted[512]; /* where the first message is whose content the template doesn't print */
    int64_t num_tokens, num_trained;
    int64_t shortest, longest; /* tokens of a row */
    int64_t histogram[INSPECT_BUCKETS];
    int64_t num_too_long;       /* rows longer than seq_len, to which long_samples happens */
    int64_t packed_rows;        /* of seq_len */
    double  packing_efficiency; /* 0..1 */
} InspectSummary;

/* Reads at most max_rows rows (0: all), in order, on this thread. job->cache_dir, num_threads and shard_tokens don't
 * matter. each may be NULL. A very long text is one row, of which `each` gets parts. */
NODISCARD Status inspect_dataset(const TokenizeJob *job, int64_t max_rows, InspectPacking packing, InspectRowFn each, void *context,
                                 InspectSummary *out_summary);
