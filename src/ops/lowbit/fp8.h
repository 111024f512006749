/* What the ops of FP8 with one scale per tensor share, on the CPU and CUDA (Micikevicius 2022).
 *
 * A code is x * `scale`, rounded to nearest, ties to even. A finite value beyond the format's largest becomes the largest; infinity and NaN
 * become NaN. The value of a code is the code times 1 / scale. */
#pragma once

#include "base/small_float.h"
#include "ir/op.h"

#include <math.h>

#ifdef __CUDACC__
#define FP8_FN static __host__ __device__ inline
#else
#define FP8_FN static inline
#endif

/* A tensor's scale. The inverse is first: cuBLASLt reads it through a pointer that it wants 16-byte aligned. */
enum { FP8_INVERSE, FP8_SCALE, FP8_SCALE_FLOATS = 4 };

/* Ops that make codes of their results need rows of a multiple of this many elements: a thread's codes are then aligned. */
enum { FP8_WHOLE = 16 };

enum { FP8_MOST_MARGIN = 32, FP8_SCALE_PART = 16384 /* elements that fp8_own_scale takes at a time */ };

/* The dtype of codes that an attribute names; 0: e4m3. */
FP8_FN DType fp8_dtype(int64_t attr)
{
    return attr ? ATTR_TO_DTYPE(attr) : DT_E4M3;
}

/* The code of infinity and NaN, as dtype_encode encodes NaN. */
FP8_FN uint32_t fp8_nan(DType dtype)
{
    return dtype == DT_E4M3 ? 0x7F : 0x7E;
}

FP8_FN void fp8_scale_set(float *scale, float value)
{
    scale[FP8_INVERSE] = 1 / value;
    scale[FP8_SCALE] = value;
    for (int i = FP8_SCALE + 1; i < FP8_SCALE_FLOATS; i++) scale[i] = 0;
}

/* The largest number of the format. */
FP8_FN float fp8_most(DType dtype)
{
    return dtype == DT_E4M3 ? 448.0f : 57344.0f;
}

#define FP8_INFINITE 0x7F800000u /* small_magnitude of infinity; NaN's is larger */

/* Sets the scale of a tensor whose largest magnitude is amax so that amax becomes `most` / 2^margin. The old scale stays if amax is 0 or
 * not finite. Scales are from 2^-126 to 2^126, so that a scale and its inverse are normal numbers. */
FP8_FN void fp8_scale_follow(float *scale, float amax, float most, int64_t margin)
{
    if (amax > 0 && small_magnitude(amax) < FP8_INFINITE)
        fp8_scale_set(scale, fminf(fmaxf(ldexpf(most / amax, (int)-margin), 0x1p-126f), 0x1p126f));
}
