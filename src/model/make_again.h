/* A weight as a format makes it again, outside a session: what training over a quantised base saw of it. */
#pragma once

#include "base/pool.h"
#include "passes/quantise.h"

/* The values of a matrix (rows, cols), in place. */
NODISCARD Status weight_make_again(const WeightFormat *format, int64_t rows, int64_t cols, float *values, ThreadPool *pool);
