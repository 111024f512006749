/* The rows a loader draws from, shared by its threads: immutable once built, but for what `lock` guards. */
#pragma once

#include "data/loader.h"
#include "data/pack.h"

#include <pthread.h>

/* A run of tokens of one document. */
typedef struct Span {
    int64_t begin; /* in its shard */
    int64_t count;
    int32_t shard;
    int32_t id;   /* identity: Feeds.doc_id; not used by LOADER_STREAM */
    bool    more; /* the token after it is the label of its last one */
} Span;

typedef struct SpanList {
    Span   *data;
    int64_t len;
    size_t  capacity;
} SpanList;

/* LOADER_PACKED: the samples that an epoch draws of a source, in rows. */
typedef struct Drawn {
    int64_t  epoch;
    int64_t *items; /* spans; heap; NULL: none are kept here */
    Packing  packing;
} Drawn;

enum { KEPT_DRAWS = 4 };

/* One source, cut up. */
typedef struct SourceRows {
    const ShardSet *shards;
    const char     *name;
    int             columns[FEED_MOST_OWN]; /* of LoaderOptions.inputs; -1: the source has none */
    SpanList        spans;
    int64_t        *offset;     /* LOADER_STREAM: (spans.len + 1) tokens before each span */
    int64_t         id_base;    /* LOADER_STREAM: tokens of the sources before */
    Packing         packing;    /* LOADER_PACKED */
    int64_t         num_rows;   /* at weight 1 */
    int64_t         whole_rows; /* that each epoch takes: num_rows times the weight's whole part */
    double          fraction;   /* the rest of the weight: the share of the units that an epoch draws besides */
    int64_t         num_units;  /* samples; LOADER_STREAM: rows */
    Drawn           drawn[KEPT_DRAWS];
    int             next_drawn;
} SourceRows;

/* An epoch that has rows: `count` of them, the first at place `first` of the run. */
typedef struct EpochStart {
    int64_t epoch, first, count;
} EpochStart;

typedef struct EpochList {
    EpochStart *data;
    int64_t     len;
    size_t      capacity;
} EpochList;

typedef struct Rows {
    LoaderOptions options;
    OwnInput      inputs[FEED_MOST_OWN]; /* (options.num_inputs) without their names */
    SourceRows   *sources;
    int           num_sources;
    LoaderStats   stats;
    int64_t       total; /* rows of the run; -1: without end */
    bool          draws; /* some weight has a fraction: epochs have different rows */

    pthread_mutex_t lock;   /* of what is below, and of what epochs drew */
    EpochList       starts; /* where epochs begin, as far as was asked for; empty without `draws` */
} Rows;

/* A row of a source: of its own, or (epoch >= 0) of those drawn for an epoch. */
typedef struct RowPlace {
    int     source;
    int64_t row, epoch;
} RowPlace;

NODISCARD Status rows_init(Rows *rows, const LoaderOptions *options, const LoaderSource *sources, int num_sources);
void             rows_deinit(Rows *rows);

/* ---- epochs: loader_epochs.c ---- */

/* Once the sources are cut: counts what epochs have. */
void rows_plan_epochs(Rows *rows);
/* The row that comes at a place of the whole run; false beyond its end. */
bool rows_locate(Rows *rows, int64_t place, RowPlace *out);
/* The epochs that the first `place` rows are, as a fraction. */
double rows_epoch(Rows *rows, int64_t place);
/* The first source of which nothing comes before place `end`; -1: all are seen. */
int rows_unseen(Rows *rows, int64_t end);
/* What an epoch drew, under the lock, and valid as long. */
const Drawn *rows_drawn(Rows *rows, int source, int64_t epoch);

/* ---- rows ---- */

/* Fills row b of a batch, and adds to its counts. */
NODISCARD Status rows_fill(Rows *rows, const RowPlace *place, Feeds *batch, int64_t b);
void             rows_fill_padding(const Rows *rows, Feeds *batch, int64_t b, int64_t from);

/* Labels of a row that aren't LABEL_IGNORE. */
int64_t rows_count_trained(Rows *rows, const RowPlace *place);
