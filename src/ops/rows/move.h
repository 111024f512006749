/* Copying ranges of a dim: shared by concat, slice and pad, for CPU and CUDA. */
#pragma once

#include "ops/rows/reduce.h"

#include "ir/op.h"

/* `outer` pieces of `len` contiguous elements: piece o is at x_at + o x_step in the source and at y_at + o y_step in the result. */
typedef struct LineMove {
    int64_t outer, len, x_at, x_step, y_at, y_step;
} LineMove;

/* Copies indexes [from, from + count) of dim `dim` of x to indexes from `to` on of y. The other dims of x and y are equal. */
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
