/* The rows a loader draws from, shared by its threads. Immutable once built, except the fields that Rows.lock guards. */
#pragma once

#include "data/loader.h"
#include "data/pack.h"

#include <pthread.h>

/* A run of tokens of one document. */
typedef struct Span {
    int64_t begin; /* index of its first token in its shard */
    int64_t count;
    int32_t shard;
    int32_t id;   /* the span's id in Feeds.doc_id; not used by LOADER_STREAM */
    bool    more; /* the token after the span is the label of its last token */
} Span;

typedef struct SpanList {
    Span   *data;
    int64_t len;
    size_t  capacity;
} SpanList;

/* LOADER_PACKED: the samples that an epoch draws from a source, packed into rows. */
typedef struct Drawn {
    int64_t  epoch;
    int64_t *items; /* indices of spans; heap; NULL: this entry is unused */
    Packing  packing;
} Drawn;

enum { KEPT_DRAWS = 4 };

/* One source, cut into rows. */
typedef struct SourceRows {
    const ShardSet *shards;
    const char     *name;
    int             columns[FEED_MOST_OWN]; /* index of the shards' column for each of LoaderOptions.inputs; -1: no such column */
    SpanList        spans;
    int64_t        *offset;     /* LOADER_STREAM: (spans.len + 1) tokens before each span */
    int64_t         id_base;    /* LOADER_STREAM: tokens of all sources before this one */
    Packing         packing;    /* LOADER_PACKED: indices of spans, packed into rows */
    int64_t         num_rows;   /* rows at weight 1 */
    int64_t         whole_rows; /* rows that each epoch takes: num_rows times the weight's whole part */
    double          fraction;   /* the weight's fractional part: the share of the units that an epoch draws in addition */
    int64_t         num_units;  /* units that epochs draw: samples; LOADER_STREAM: rows */
    Drawn           drawn[KEPT_DRAWS];
    int             next_drawn;
} SourceRows;

/* An epoch that has rows: `count` of them, the first is row `first` of the run. */
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
    OwnInput      inputs[FEED_MOST_OWN]; /* (options.num_inputs) copies; their names aren't valid any more */
    SourceRows   *sources;
    int           num_sources;
    LoaderStats   stats;
    int64_t       total; /* rows of the run; -1: without end */
    bool          draws; /* some weight has a fraction: epochs have different rows */

    pthread_mutex_t lock;   /* guards `starts` and SourceRows.drawn */
    EpochList       starts; /* where epochs begin, for the epochs looked at so far; empty if !draws */
} Rows;

/* A row of a source. epoch -1: one of the source's num_rows rows; >= 0: one of the rows packed from the samples that this epoch drew. */
typedef struct RowPlace {
    int     source;
    int64_t row, epoch;
} RowPlace;

NODISCARD Status rows_init(Rows *rows, const LoaderOptions *options, const LoaderSource *sources, int num_sources);
void             rows_deinit(Rows *rows);

/* ---- epochs: loader_epochs.c ---- */

/* Counts the rows of epochs. Call it once the sources are cut. */
void rows_plan_epochs(Rows *rows);
/* The row at index `place` of the whole run; false: past its end. */
bool rows_locate(Rows *rows, int64_t place, RowPlace *out);
/* How many epochs the first `place` rows of the run are: a fraction, such as 1.5. */
double rows_epoch(Rows *rows, int64_t place);
/* The first source that has no row before index `end` of the run; -1: every source has one. */
int rows_unseen(Rows *rows, int64_t end);
/* The rows that an epoch drew. Needs the lock; valid while the lock is held. */
const Drawn *rows_drawn(Rows *rows, int source, int64_t epoch);

/* ---- rows ---- */

/* Fills row b of a batch, and adds to the batch's num_tokens and num_trained. */
NODISCARD Status rows_fill(Rows *rows, const RowPlace *place, Feeds *batch, int64_t b);
void             rows_fill_padding(const Rows *rows, Feeds *batch, int64_t b, int64_t from);

/* Counts the labels of a row that aren't LABEL_IGNORE. */
int64_t rows_count_trained(Rows *rows, const RowPlace *place);
