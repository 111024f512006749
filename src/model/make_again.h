/* Quantises a weight to a format and dequantises it again, outside a session. Training over a quantised base computed with these values. */
#pragma once

#include "base/pool.h"
#include "passes/quantise.h"

/* Quantises a matrix (rows, cols). parts: receives the format's parts, allocated in `arena`. */
NODISCARD Status weight_quantise(Arena *arena, const WeightFormat *format, int64_t rows, int64_t cols, const float *values,
                                 ThreadPool *pool, void *parts[FORMAT_MAX_PARTS]);

/* Replaces the values of a matrix (rows, cols) by those that quantising and dequantising give. */
NODISCARD Status weight_make_again(const WeightFormat *format, int64_t rows, int64_t cols, float *values, ThreadPool *pool);
