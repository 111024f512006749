/* The rows a loader draws from: immutable once built, shared by its threads. */
#pragma once

#include "data/loader.h"
#include "data/pack.h"

/* A run of tokens of one document. */
typedef struct Span {
    int64_t begin; /* in its shard */
    int64_t count;
    int32_t shard;
    int32_t id;   /* identity: Batch.doc_id; not used by LOADER_STREAM */
    bool    more; /* the token after it is the label of its last one */
} Span;

typedef struct SpanList {
    Span   *data;
    int64_t len, capacity;
} SpanList;

/* One source, cut up. */
typedef struct SourceRows {
    const ShardSet *shards;
    SpanList        spans;
    int64_t        *offset;     /* LOADER_STREAM: (spans.len + 1) tokens before each span */
    int64_t         id_base;    /* LOADER_STREAM: tokens of the sources before */
    Packing         packing;    /* LOADER_PACKED */
    int64_t         num_rows;   /* at weight 1 */
    int64_t         epoch_rows; /* with weight */
} SourceRows;

typedef struct Rows {
    LoaderOptions options;
    SourceRows   *sources;
    int           num_sources;
    LoaderStats   stats;
} Rows;

NODISCARD Status rows_init(Rows *rows, const LoaderOptions *options, const LoaderSource *sources, int num_sources);
void             rows_deinit(Rows *rows);

/* The source and row that come at `index` of an epoch. */
void rows_locate(const Rows *rows, int64_t epoch, int64_t index, int *out_source, int64_t *out_row);

/* Fills row b of a batch, and adds to its counts. */
NODISCARD Status rows_fill(const Rows *rows, int source, int64_t row, Batch *batch, int64_t b);
void             rows_fill_padding(const Rows *rows, Batch *batch, int64_t b, int64_t from);

/* Labels of a row that aren't LABEL_IGNORE. */
int64_t rows_count_trained(const Rows *rows, int source, int64_t row);
