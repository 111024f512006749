/* One column chunk as a sequence of (repetition level, definition level, value), page by page. */
#pragma once

#include "data/codec.h"
#include "data/parquet_decode.h"

typedef struct ColumnReader {
    const char        *path;
    const ParquetNode *leaf;
    const uint8_t     *at, *end; /* pages not read yet */
    Codec              codec;
    int64_t            values_left; /* values of the chunk not taken yet, the current page's included */
    int64_t            page_left;
    uint8_t           *page, *dictionary_page; /* heap: decompressed bytes */
    size_t             page_capacity, dictionary_capacity;
    PqValue           *dictionary; /* heap */
    RleDecoder         reps, defs;
    ValueDecoder       values;
    bool               has_levels; /* rep and def below are levels of the next value */
    int32_t            rep, def;
} ColumnReader;

/* Starts a chunk; the buffers of the previous chunk are reused. file[0..) is the mapped file; the chunk's range in it is checked
 * already. */
void column_begin(ColumnReader *column, const char *path, const ParquetNode *leaf, const ParquetChunk *chunk, const uint8_t *file);
void column_deinit(ColumnReader *column);

/* Sets rep and def to the levels of the next value. It is an error if the chunk is used up. */
NODISCARD Status column_peek(ColumnReader *column);
/* At the end of the chunk? */
static inline bool column_at_end(const ColumnReader *column)
{
    return column->values_left == 0 && !column->has_levels;
}
/* Consumes the peeked value; *out is set if def is the leaf's own def_level; else the value is null or absent. */
NODISCARD Status column_take(ColumnReader *column, PqValue *out);
