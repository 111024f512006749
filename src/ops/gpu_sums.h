/* How kernels on a GPU cut what they sum, by shapes alone. Kernels need it, and so do plans, which count the partial sums in the
 * workspace. */
#pragma once

#include "ir/graph.h"

enum {
    SUM_MAX_CHUNKS = 1024,     /* chunks of rows */
    SQUARES_PER_BLOCK = 32768, /* elements that a block takes: this many, or a multiple */
    SQUARES_MOST_BLOCKS = 4096,
    NORMUON_MOMENTUM_BLOCKS = 1024,
    NORMUON_UPDATE_BLOCKS = 256,
};

/* Rows of a chunk in sums over rows: at most SUM_MAX_CHUNKS chunks. */
static inline int64_t sum_chunk_rows(int64_t rows)
{
    return (rows + SUM_MAX_CHUNKS - 1) / SUM_MAX_CHUNKS;
}

static inline int64_t sum_num_chunks(int64_t rows)
{
    return rows ? (rows + sum_chunk_rows(rows) - 1) / sum_chunk_rows(rows) : 0;
}

/* Bytes of the partial sums of x's rows: `sums` of them for each chunk and column. */
static inline size_t sum_chunks_bytes(const TensorType *x, int64_t cols, int64_t sums)
{
    return (size_t)(sum_num_chunks(type_rows(x)) * cols * sums) * sizeof(float);
}

/* Elements of a block in a sum of squares of `count` elements. */
static inline int64_t squares_of_block(int64_t count)
{
    const int64_t least = SQUARES_PER_BLOCK;
    int64_t       each = (count + SQUARES_MOST_BLOCKS - 1) / SQUARES_MOST_BLOCKS;
    return each < least ? least : (each + least - 1) / least * least;
}
