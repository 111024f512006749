/* Copying ranges of a dim: shared by concat, slice and pad, for CPU and CUDA. */
#pragma once

#include "ops/rows/reduce.h"

#include "ir/op.h"
#include "ops/attrs.h"

enum { CONCAT_IN = 8, MOST_MOVES = CONCAT_IN };

/* `outer` pieces of `len` contiguous elements: piece o is at x_at + o x_step in the source and at y_at + o y_step in the result. */
typedef struct LineMove {
    const TensorView *x; /* the source; NULL: zeros */
    int64_t           outer, len, x_at, x_step, y_at, y_step;
} LineMove;

/* Moves indexes [from, from + count) of dim `dim` of x to indexes from `to` on of y. The other dims of x and y are equal. */
static inline LineMove line_move(const TensorView *x, const TensorType *y, int dim, int64_t from, int64_t to, int64_t count)
{
    Lines    in = lines_around(&x->type, dim), out = lines_around(y, dim);
    LineMove move = {x, out.outer, count * out.inner, from * in.inner, in.count * in.inner, to * out.inner, out.count * out.inner};
    return move;
}

/* Like line_move, but stores zeros. */
static inline LineMove line_zeros(const TensorType *y, int dim, int64_t to, int64_t count)
{
    Lines    out = lines_around(y, dim);
    LineMove move = {NULL, out.outer, count * out.inner, 0, 0, to * out.inner, out.count * out.inner};
    return move;
}

/* The moves that make an op's result. They return their number, at most MOST_MOVES. */
static inline int concat_moves(const KernelArgs *args, LineMove *out)
{
    int     count = 0, dim = dim_of(((const ConcatAttrs *)args->attrs)->dim, args->in[0].type.ndim);
    int64_t at = 0;
    for (int k = 0; k < args->num_in; k++) {
        const TensorView *x = &args->in[k];
        if (!x->data) continue;
        out[count++] = line_move(x, &args->out[0].type, dim, 0, at, x->type.dim[dim]);
        at += x->type.dim[dim];
    }
    return count;
}

static inline int slice_moves(const KernelArgs *args, LineMove *out)
{
    const SliceAttrs *attrs = (const SliceAttrs *)args->attrs;
    const TensorView *x = &args->in[0];
    out[0] = line_move(x, &args->out[0].type, dim_of(attrs->dim, x->type.ndim), attrs->begin, 0, attrs->size);
    return 1;
}

static inline int pad_moves(const KernelArgs *args, LineMove *out)
{
    const SliceAttrs *attrs = (const SliceAttrs *)args->attrs;
    const TensorView *x = &args->in[0];
    const TensorType *y = &args->out[0].type;
    int               count = 0, dim = dim_of(attrs->dim, x->type.ndim);
    int64_t           size = x->type.dim[dim];
    if (attrs->before) out[count++] = line_zeros(y, dim, 0, attrs->before);
    if (attrs->after) out[count++] = line_zeros(y, dim, attrs->before + size, attrs->after);
    out[count++] = line_move(x, y, dim, 0, attrs->before, size);
    return count;
}
