/* gelu on CPU and CUDA: its attributes, and the tanh form as x sigmoid(u). */
#pragma once

#include <stdbool.h>

typedef struct GeluAttrs {
    bool tanh; /* true: the approximation by tanh; false: exact, by erf */
} GeluAttrs;

#ifdef __CUDACC__
#define GELU_FUNCTION static __device__ __forceinline__
#else
#define GELU_FUNCTION static inline
#endif

/* u = twice the argument of tanh; below, du / dx. */
GELU_FUNCTION float gelu_argument(float x)
{
    return 1.5957691216f * (x + 0.044715f * (x * x * x));
}

GELU_FUNCTION float gelu_argument_slope(float x)
{
    return 1.5957691216f * (1.0f + 0.134145f * (x * x));
}
