/* What the ops of FP8 with a scale a tensor share, on the CPU and CUDA (Micikevicius 2022).
 *
 * Codes are the numbers times `scale`, rounded to nearest, ties to even; what is finite and beyond the format's largest number
 * becomes that one, what isn't finite NaN. The numbers are the codes times 1 / scale. */
#pragma once

#include "base/small_float.h"
#include "ir/op.h"

#include <math.h>

#ifdef __CUDACC__
#define FP8_FN static __host__ __device__ inline
#else
#define FP8_FN static inline
#endif

/* A tensor's scale. The inverse is first: products read it through a pointer that cuBLASLt wants 16-byte aligned. */
enum { FP8_INVERSE, FP8_SCALE, FP8_SCALE_FLOATS = 4 };

/* Rows that ops make codes of beside their results are of a multiple of so many numbers: a thread's codes of a row lie well. */
enum { FP8_WHOLE = 16 };

enum { FP8_MOST_MARGIN = 32, FP8_SCALE_PART = 16384 /* elements that fp8_own_scale takes at a time */ };

/* The format of codes that an attribute names. */
FP8_FN DType fp8_dtype(int64_t attr)
{
    return attr ? ATTR_TO_DTYPE(attr) : DT_E4M3;
}

/* The code of what isn't finite, as dtype_encode has it for NaN. */
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

#define FP8_INFINITE 0x7F800000u /* small_magnitude of infinity; NaN's are above */

/* The scale of a tensor whose largest magnitude is amax, for codes up to `most`: the old one stays where amax is 0 or not finite.
 * From 2^-126 to 2^126, so that it and its inverse are normal numbers. */
FP8_FN void fp8_scale_follow(float *scale, float amax, float most, int64_t margin)
{
    if (amax > 0 && small_magnitude(amax) < FP8_INFINITE)
        fp8_scale_set(scale, fminf(fmaxf(ldexpf(most / amax, (int)-margin), 0x1p-126f), 0x1p126f));
}
