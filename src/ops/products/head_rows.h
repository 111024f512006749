/* Shared by head_rows on CPU and CUDA. */
#pragma once

#include "base/dtype.h"

enum { HEAD_X, HEAD_W, HEAD_SCALE, HEAD_BIAS };
enum { HEAD_MOST_ROUND = 64, HEAD_MOST_DIM = 1 << 24 };

typedef struct HeadRowsAttrs {
    int64_t round;
} HeadRowsAttrs;

#define HEAD_DTYPES (DT_SET_FLOAT | DT_SET(DT_F16) | DT_SET(DT_I8))

/* Whether x is rounded to w's format, which matrix units multiply. */
static inline bool head_by_halves(DType w)
{
    return w == DT_BF16 || w == DT_F16;
}

/* Whether a GPU's kernels read a copy of x in another format. */
static inline bool head_wants_copy(DType x, DType w)
{
    return x != (head_by_halves(w) ? w : DT_F32);
}
