/* Shared by normuon_momentum and normuon_update, on CPU and CUDA: which rows of a weight form the matrix to update. */
#pragma once

#include "ir/op.h"
#include "ops/attrs.h"
#include "ops/random.h"

/* Attributes begin, size and period of a struct with a field MatrixRows rows. */
#define NORMUON_ROWS_ATTR(Struct, field) \
    { \
#field, ATTR_TYPE_INT, offsetof(Struct, rows.field), 0, false, false \
    }
#define NORMUON_ROWS_ATTRS(Struct) NORMUON_ROWS_ATTR(Struct, begin), NORMUON_ROWS_ATTR(Struct, size), NORMUON_ROWS_ATTR(Struct, period)

/* Returns `rows`, with size 0 replaced by all `weight_rows` rows of the weight. */
PHILOX_FN MatrixRows normuon_rows(MatrixRows rows, int64_t weight_rows)
{
    MatrixRows all = {0, weight_rows, weight_rows};
    return rows.size ? rows : all;
}

/* The row of the weight that is row `row` of the matrix. Works for elements too, if `rows` is given in elements. */
PHILOX_FN int64_t normuon_place(MatrixRows rows, int64_t row)
{
    return row / rows.size * rows.period + rows.begin + row % rows.size;
}

/* *out: the type of the matrix (rows,C) within a weight (R,C). */
NODISCARD static inline Status normuon_matrix(MatrixRows rows, const TensorType *weight, TensorType *out)
{
    *out = *weight;
    if (!rows.size) return OK;
    FAIL_IF(rows.begin < 0 || rows.size < 0 || rows.period < 1 || rows.size > rows.period || rows.begin > rows.period - rows.size ||
                weight->dim[0] % rows.period,
            ERR_INVALID, "%lld rows from %lld on of every %lld: attributes begin, size and period don't fit a weight of %lld rows",
            (long long)rows.size, (long long)rows.begin, (long long)rows.period, (long long)weight->dim[0]);
    out->dim[0] = weight->dim[0] / rows.period * rows.size;
    return OK;
}

/* Scales a cost for the whole weight and its states down to the matrix. x_bytes: the part of cost.bytes that belongs to the matrix
 * already. */
static inline OpCost normuon_cost(OpCost cost, MatrixRows rows, double x_bytes)
{
    if (rows.size) cost.bytes = (cost.bytes - x_bytes) * (double)rows.size / (double)rows.period + x_bytes;
    return cost;
}
