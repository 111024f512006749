/* Loader: micro-batches for training and evaluation, out of token shards.
 *
 * A dataset becomes rows of seq_len tokens once, at creation. Which row comes when is a pure function of (seed, epoch),
 * so that the cursor is one number, the rows given out, and resuming at it is exact. Documents in a row stay apart. A thread
 * fills a small ring of buffers ahead; nothing is allocated after creation. */
#pragma once

#include "data/feeds.h"
#include "data/shard.h"

typedef enum LoaderMode {
    LOADER_STREAM, /* documents one after the other, cut every seq_len tokens: every token is used (pre-training) */
    LOADER_PACKED, /* whole samples, best fit */
    LOADER_PADDED, /* one sample a row */
} LoaderMode;

/* A sample longer than seq_len (LOADER_PACKED and LOADER_PADDED). Text, that is shards without a mask, is always split. */
typedef enum LongSamples { LONG_TRUNCATE, LONG_SPLIT, LONG_DROP, LONG_ERROR } LongSamples;

/* Which documents: all, or one side of the validation split. */
typedef enum LoaderPart { LOADER_ALL, LOADER_TRAIN, LOADER_VALIDATION } LoaderPart;

typedef struct LoaderSource {
    const ShardSet *shards; /* borrowed until loader_destroy */
    double          weight; /* after e epochs floor(weight * samples * e) of its samples came, each before any again; 0 means 1 */
    const char     *name;   /* for messages */
} LoaderSource;

typedef struct LoaderOptions {
    LoaderMode      mode;
    LongSamples     long_samples;
    LoaderPart      part;
    double          validation_ratio; /* share of documents that are validation, in [0, 1) */
    int32_t         seq_len;          /* T */
    int32_t         batch_size;       /* B: rows of a micro-batch on one rank */
    int32_t         grad_accum_steps; /* micro-batches of a train step; 0 means 1 */
    int32_t         rank, world_size; /* world_size 0 means 1 */
    double          num_epochs;       /* 0: without end */
    uint64_t        seed;
    bool            shuffle;      /* false: rows in order, the same each epoch */
    bool            at_least_one; /* of a source's samples in the first epoch, however small its weight */
    int32_t         pad_id;       /* what padding holds in `tokens`; never trained */
    int32_t         vocab_size;   /* of the model: ids beyond it are an error; 0: not checked */
    int             prefetch;     /* micro-batches ahead; 0: none, no thread */
    const OwnInput *inputs;       /* what a batch has besides; borrowed until loader_create returns, names and all */
    int             num_inputs;
} LoaderOptions;

/* What was made of the data: for reports. */
typedef struct LoaderStats {
    int64_t num_documents;                              /* of this part, those left out too */
    int64_t num_used;                                   /* documents of which something is in a row */
    int64_t num_tokens;                                 /* in rows of one epoch at weight 1 */
    int64_t num_trained;                                /* of those, labels */
    int64_t num_rows;                                   /* at weight 1 */
    int64_t rows_per_epoch;                             /* with weights, of the first epoch; of each, where all weights are whole */
    double  rows_an_epoch;                              /* with weights, about */
    int64_t num_truncated, num_split, num_dropped_long; /* documents */
    int64_t tokens_cut;                                 /* by truncation and dropping */
    int64_t num_dropped_empty;                          /* samples left without a trained token */
    double  efficiency;                                 /* num_tokens / (num_rows * T) */
} LoaderStats;

typedef struct Loader Loader;

/* ERR_INVALID when no trained token is left (it says why), or the vocabularies don't fit. */
NODISCARD Status   loader_create(const LoaderOptions *options, const LoaderSource *sources, int num_sources, Loader **out_loader);
void               loader_destroy(Loader *loader); /* NULL is fine */
const LoaderStats *loader_stats(const Loader *loader);

/* Train steps in num_epochs, those before a resume too; -1 when without end. The last one is filled up with padding. Steps run over the
 * border of epochs, so that no row is left out. */
int64_t loader_num_steps(const Loader *loader);

/* The name of a source of which nothing comes in the first `steps` steps, as its weight is too small; NULL: all come. */
const char *loader_unseen(Loader *loader, int64_t steps);
int64_t     loader_rows_per_step(const Loader *loader); /* B * grad_accum_steps * world_size */
int64_t     loader_row_len(const Loader *loader);       /* T */

/* The epoch a step starts in, as a fraction: 1.5 is in the middle of the second. */
double loader_epoch(Loader *loader, int64_t step);

/* The next micro-batch is the first of `step`. */
void loader_seek(Loader *loader, int64_t step);

int64_t loader_total_rows(const Loader *loader); /* of num_epochs; -1: without end */
/* The rows that were given out before `step`: the cursor of a run, whatever number of rows its steps have. */
int64_t loader_rows_before(const Loader *loader, int64_t step);
/* This is resuming: `step` comes next, and begins with the row behind the first `rows`. Earlier steps are none of this loader's. */
void loader_resume(Loader *loader, int64_t step, int64_t rows);

/* *out is NULL at the end; else valid until the next call of loader_next, loader_seek or loader_destroy. */
NODISCARD Status loader_next(Loader *loader, const Feeds **out_batch);

/* Trained tokens of a whole train step, over all micro-batches and ranks: the loss's divisor, known before the first
 * forward. Reads masks only. */
NODISCARD Status loader_step_tokens(Loader *loader, int64_t step, int64_t *out_count);

/* Row `index` in 0..num_rows-1, in file order (for inspect and for tests); each array of `row` is (T), the caller's. */
NODISCARD Status loader_read_row(Loader *loader, int64_t index, Feeds *row);

/* A permutation of 0..count-1, one entry in O(1): what shuffles an epoch. */
int64_t permute_index(int64_t index, int64_t count, uint64_t seed, uint64_t epoch);
