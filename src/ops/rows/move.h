/* Pieces of a dim moved to another place: what concat, slice and pad have in common, for CPU and CUDA. */
#pragma once

#include "ops/rows/reduce.h"

#include "ir/op.h"

/* `outer` pieces of `len` neighbouring elements: piece o is at x_at + o x_step of the source and at y_at + o y_step of the result. */
typedef struct LineMove {
    int64_t outer, len, x_at, x_step, y_at, y_step;
} LineMove;

/* Indexes [from, from + count) of dim `dim` of x become indexes from `to` on of y, which has as many elements around it. */
static inline LineMove line_move(const TensorType *x, const TensorType *y, int dim, int64_t from, int64_t to, int64_t count)
{
    Lines in = lines_around(x, dim), out = lines_around(y, dim);
    return (LineMove){.outer = out.outer,
                      .len = count * out.inner,
                      .x_at = from * in.inner,
                      .x_step = in.count * in.inner,
                      .y_at = to * out.inner,
                      .y_step = out.count * out.inner};
}
