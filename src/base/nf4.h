/* NF4's 16 values, quantiles of a normal distribution (Dettmers 2023, appendix E), for the CPU and CUDA. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define NF4_FN static __host__ __device__ inline
#else
#define NF4_FN static inline
#endif

enum { NF4_ZERO = 7 /* the code of the value 0 */, NF4_CODES = 16 };

NF4_FN float nf4_value(int code)
{
    static const float values[NF4_CODES] = {
        -1.0f,
        -0.6961928009986877f,
        -0.5250730514526367f,
        -0.39491748809814453f,
        -0.28444138169288635f,
        -0.18477343022823334f,
        -0.09105003625154495f,
        0.0f,
        0.07958029955625534f,
        0.16093020141124725f,
        0.24611230194568634f,
        0.33791524171829224f,
        0.44070982933044434f,
        0.5626170039176941f,
        0.7229568362236023f,
        1.0f,
    };
    return values[code];
}

/* The code of the nearest value; ties go to the lower code. NaN becomes the code of 0. */
NF4_FN int nf4_nearest(float value)
{
    int code = 0;
    if (value != value) return NF4_ZERO;
    for (int i = 0; i < NF4_CODES - 1; i++) code += value > (nf4_value(i) + nf4_value(i + 1)) / 2;
    return code;
}
