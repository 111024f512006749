/* The arithmetic of fp8_update, for the CPU and CUDA. */
#pragma once

#include "ops/attrs.h"
#include "ops/lowbit/fp8.h"

enum { UPDATE_IN_NOW, UPDATE_IN_HISTORY, UPDATE_IN_SCALES, UPDATE_IN_MOST, UPDATE_IN_APPLIED, UPDATE_IN_COUNT };
enum { UPDATE_OUT_NOW, UPDATE_OUT_HISTORY, UPDATE_OUT_SCALES };

/* The row of the history for this step's magnitudes; -1: the step isn't applied. The input `count` already includes this step. */
FP8_FN int64_t fp8_update_row(const TensorView *in, int64_t rows)
{
    int64_t before = *(const int64_t *)in[UPDATE_IN_COUNT].data - 1;
    if (*(const float *)in[UPDATE_IN_APPLIED].data == 0) return -1;
    return (before % rows + rows) % rows;
}

/* This step's largest magnitude of a tensor, as the history keeps it: 0 if not finite. */
FP8_FN float fp8_update_now(const TensorView *in, int64_t tensor)
{
    float now = ((const float *)in[UPDATE_IN_NOW].data)[tensor];
    return small_magnitude(now) < FP8_INFINITE ? now : 0;
}

/* Writes a tensor's outputs. amax: the largest magnitude that sets its scale. Outputs may be NULL: not wanted. */
FP8_FN void fp8_update_tensor(const Fp8UpdateAttrs *attrs, const TensorView *in, const TensorView *out, int64_t tensor, int64_t row,
                              float amax)
{
    float *now = (float *)out[UPDATE_OUT_NOW].data, *history = (float *)out[UPDATE_OUT_HISTORY].data;
    float *scales = (float *)out[UPDATE_OUT_SCALES].data, most = ((const float *)in[UPDATE_IN_MOST].data)[tensor];
    if (row >= 0 && history) history[row * in[UPDATE_IN_NOW].type.dim[0] + tensor] = fp8_update_now(in, tensor);
    if (row >= 0 && scales) fp8_scale_follow(scales + tensor * FP8_SCALE_FLOATS, amax, most, attrs->margin);
    if (now) now[tensor] = 0;
}
