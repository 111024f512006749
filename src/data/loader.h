/* Loader: micro-batches for training and evaluation, out of token shards.
 *
 * A dataset becomes rows of seq_len tokens once, at creation. Which row comes when is a pure function of (seed, epoch). So the cursor is
 * one number, the count of rows given out, and a run resumes exactly there. Documents in a row stay apart. A thread fills a small ring of
 * buffers ahead; nothing is allocated after creation. */
#pragma once

#include "data/feeds.h"
#include "data/shard.h"

typedef enum LoaderMode {
    LOADER_STREAM, /* documents one after the other, cut every seq_len tokens: every token is used (pre-training) */
    LOADER_PACKED, /* whole samples, best fit */
    LOADER_PADDED, /* one sample a row */
} LoaderMode;

/* What happens to a sample longer than seq_len (LOADER_PACKED, LOADER_PADDED). Text (shards without a mask) is always split. */
typedef enum LongSamples { LONG_TRUNCATE, LONG_SPLIT, LONG_DROP, LONG_ERROR } LongSamples;

/* Which documents are used: all, or one side of the validation split. */
typedef enum LoaderPart { LOADER_ALL, LOADER_TRAIN, LOADER_VALIDATION } LoaderPart;

typedef struct LoaderSource {
    const ShardSet *shards; /* borrowed until loader_destroy */
    double weight; /* samples that an epoch takes, as a multiple of the source's samples; 0 means 1. e epochs take floor(weight * samples *
                      e), each sample equally often or once more */
    const char *name; /* name of the source in messages */
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
    bool            at_least_one; /* the first epoch has a sample of every source, however small its weight */
    int32_t         pad_id;       /* the token id of padding; never trained */
    int32_t         vocab_size;   /* the model's vocabulary; ids that aren't below it are an error; 0: not checked */
    int             prefetch;     /* micro-batches to fill ahead; 0: none, and no thread is started */
    const OwnInput *inputs;       /* inputs of the model's own, for batches; array and names are borrowed until loader_create returns */
    int             num_inputs;
} LoaderOptions;

/* Counts of the data, for reports. */
typedef struct LoaderStats {
    int64_t num_documents;  /* documents of LoaderOptions.part, dropped ones included */
    int64_t num_used;       /* documents that have a token in some row */
    int64_t num_tokens;     /* tokens in the rows of one epoch at weight 1 */
    int64_t num_trained;    /* trained labels in the rows of one epoch at weight 1 */
    int64_t num_rows;       /* rows of one epoch at weight 1 */
    int64_t rows_per_epoch; /* rows of the first epoch, with weights; of each epoch if all weights are whole numbers */
    double  rows_an_epoch;  /* average rows of an epoch, with weights; approximate */
    int64_t num_truncated, num_split, num_dropped_long; /* documents longer than seq_len, by what happened to them */
    int64_t tokens_cut;                                 /* tokens lost by truncation and dropping */
    int64_t num_dropped_empty;                          /* samples left without a trained token */
    double  efficiency;                                 /* num_tokens / (num_rows * T) */
} LoaderStats;

typedef struct Loader Loader;

/* ERR_INVALID: no trained token is left (the message says why), or the vocabularies don't fit. */
NODISCARD Status   loader_create(const LoaderOptions *options, const LoaderSource *sources, int num_sources, Loader **out_loader);
void               loader_destroy(Loader *loader); /* NULL is fine */
const LoaderStats *loader_stats(const Loader *loader);

/* Train steps in num_epochs, including those before a resume; -1: endless. The last step is filled up with padding. A step may cross the
 * border of two epochs, so that no row is left out. */
int64_t loader_num_steps(const Loader *loader);

/* The name of a source whose weight is so small that the first `steps` steps have no sample of it; NULL: there is no such source. */
const char *loader_unseen(Loader *loader, int64_t steps);
int64_t     loader_rows_per_step(const Loader *loader); /* B * grad_accum_steps * world_size */
int64_t     loader_row_len(const Loader *loader);       /* T */

/* The epoch that a step starts in, as a fraction: 1.5 is in the middle of the second epoch. */
double loader_epoch(Loader *loader, int64_t step);

/* Moves to `step`: the next call of loader_next gives its first micro-batch. */
void loader_seek(Loader *loader, int64_t step);

int64_t loader_total_rows(const Loader *loader); /* rows of num_epochs epochs; -1: endless */
/* Rows given out before `step`: the cursor of a run, which stays valid if the number of rows per step changes. */
int64_t loader_rows_before(const Loader *loader, int64_t step);
/* Resumes a run: `step` comes next, and begins after the first `rows` rows. loader_seek can't go back to earlier steps. */
void loader_resume(Loader *loader, int64_t step, int64_t rows);

/* *out_batch belongs to the loader and is valid until the next call of loader_next, loader_seek or loader_destroy; NULL: the end. */
NODISCARD Status loader_next(Loader *loader, const Feeds **out_batch);

/* Trained tokens of a whole train step, over all micro-batches and ranks: the loss's divisor, known before the first
 * forward. Reads masks only. */
NODISCARD Status loader_step_tokens(Loader *loader, int64_t step, int64_t *out_count);

/* Fills `row` with row `index` of 0..num_rows-1, in file order (for inspect and for tests). Its arrays belong to the caller and have T
 * elements each. */
NODISCARD Status loader_read_row(Loader *loader, int64_t index, Feeds *row);

/* Entry `index` of a random permutation of 0..count-1, in O(1): this shuffles an epoch. */
int64_t permute_index(int64_t index, int64_t count, uint64_t seed, uint64_t epoch);
