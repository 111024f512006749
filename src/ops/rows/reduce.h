/* A dim of a tensor as what lies around it: element (o, i, j) is number (o count + i) inner + j. For CPU and CUDA. */
#pragma once

#include "ops/attrs.h"

#include "ir/graph.h"

typedef struct Lines {
    int64_t outer, count, inner;
} Lines;

/* The dim that an attribute names; negative: counted from the end. */
static inline int dim_of(int64_t dim, int ndim)
{
    return (int)(dim < 0 ? dim + ndim : dim);
}

/* Around dim `dim`, counted from 0. */
static inline Lines lines_around(const TensorType *type, int dim)
{
    Lines lines = {1, type->dim[dim], 1};
    for (int d = 0; d < dim; d++) lines.outer *= type->dim[d];
    for (int d = dim + 1; d < type->ndim; d++) lines.inner *= type->dim[d];
    return lines;
}
