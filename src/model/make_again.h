/* A weight as a format keeps it, and makes it again, outside a session: what training over a quantised base saw of it. */
#pragma once

#include "base/pool.h"
#include "passes/quantise.h"

/* The parts of a matrix (rows, cols), in `arena`: as many as the format has. */
NODISCARD Status weight_quantise(Arena *arena, const WeightFormat *format, int64_t rows, int64_t cols, const float *values,
                                 ThreadPool *pool, void *parts[FORMAT_MAX_PARTS]);

/* The values of a matrix (rows, cols), in place. */
NODISCARD Status weight_make_again(const WeightFormat *format, int64_t rows, int64_t cols, float *values, ThreadPool *pool);
