/* One dim of a tensor, with the dims around it joined: element (o, i, j) has index (o count + i) inner + j. A line is the `count` elements
 * of one o and one j. For CPU and CUDA. */
#pragma once

#include "ops/attrs.h"

#include "ir/graph.h"

typedef struct Lines {
    int64_t outer, count, inner;
} Lines;

/* The index of the dim that an attribute names; negative attributes count from the last dim. */
static inline int dim_of(int64_t dim, int ndim)
{
    return (int)(dim < 0 ? dim + ndim : dim);
}

/* The lines along dim `dim`, which must not be negative. */
static inline Lines lines_around(const TensorType *type, int dim)
{
    Lines lines = {1, type->dim[dim], 1};
    for (int d = 0; d < dim; d++) lines.outer *= type->dim[d];
    for (int d = dim + 1; d < type->ndim; d++) lines.inner *= type->dim[d];
    return lines;
}
