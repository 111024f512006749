/* reduce_scatter by copies: the other ranks' parts of a share are copied in pieces, so that they need little memory however large the
 * share is. */
#pragma once

#include "ir/op.h"

/* Elements that are copied at a time from each of the other ranks. numel: elements of a rank's share. */
static inline int64_t reduce_piece_numel(DType dtype, int64_t numel, int64_t ranks)
{
    const int64_t most_bytes = 32 << 20, multiple = 128;
    int64_t       most = most_bytes / (ranks - 1) / dtype_bytes(dtype, multiple) * multiple;
    return numel < most ? numel : most;
}

/* Bytes in memory from one rank's piece to the next. */
static inline size_t reduce_piece_bytes(DType dtype, int64_t numel, int64_t ranks)
{
    return ((size_t)dtype_bytes(dtype, reduce_piece_numel(dtype, numel, ranks)) + 255) / 256 * 256;
}

static inline size_t reduce_pieces_bytes(const Node *node, int64_t ranks)
{
    const TensorType *share = &node->out[0]->type;
    return (size_t)(ranks - 1) * reduce_piece_bytes(share->dtype, type_numel(share), ranks);
}
