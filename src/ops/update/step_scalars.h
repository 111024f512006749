/* The arithmetic of step_scalars, for the CPU and CUDA. */
#pragma once

#include "ir/op.h"
#include "ops/attrs.h"

#include <math.h>

#ifdef __CUDACC__
#define STEP_FN static __host__ __device__ inline
#else
#define STEP_FN static inline
#endif

enum { STEP_IN_HYPER, STEP_IN_NORM2, STEP_IN_LOSS, STEP_IN_COUNT };
enum { STEP_OUT_HYPER, STEP_OUT_COUNT, STEP_OUT_APPLIED };

/* out[k].data NULL: that output is not wanted. */
STEP_FN void step_scalars(const StepScalarsAttrs *attrs, const TensorView *in, const TensorView *out)
{
    const float *hyper = (const float *)in[STEP_IN_HYPER].data;
    bool         applied = isfinite(*(const float *)in[STEP_IN_NORM2].data) && isfinite(*(const float *)in[STEP_IN_LOSS].data);
    int64_t      count = *(const int64_t *)in[STEP_IN_COUNT].data;
    float       *out_hyper = (float *)out[STEP_OUT_HYPER].data;
    for (int i = 0; out_hyper && i < HYPER_COUNT; i++) out_hyper[i] = hyper[i];
    if (out_hyper) {
        out_hyper[HYPER_BIAS1] = (float)(1.0 - pow(attrs->beta1, (double)(count + 1)));
        out_hyper[HYPER_BIAS2] = (float)(1.0 - pow(attrs->beta2, (double)(count + 1)));
    }
    if (out[STEP_OUT_COUNT].data) *(int64_t *)out[STEP_OUT_COUNT].data = count + applied;
    if (out[STEP_OUT_APPLIED].data) *(float *)out[STEP_OUT_APPLIED].data = applied ? 1.0f : 0.0f;
}
