/* gelu on CPU and CUDA: its attributes, and the form by tanh as x sigmoid(u). */
#pragma once

#include <stdbool.h>

typedef struct GeluAttrs {
    bool tanh; /* the approximation by tanh; false: by erf, exactly */
} GeluAttrs;

#ifdef __CUDACC__
#define GELU_FUNCTION static __device__ __forceinline__
#else
#define GELU_FUNCTION static inline
#endif

/* u, twice the argument of tanh, and du / dx. */
GELU_FUNCTION float gelu_argument(float x)
{
    return 1.5957691216f * (x + 0.044715f * (x * x * x));
}

GELU_FUNCTION float gelu_argument_slope(float x)
{
    return 1.5957691216f * (1.0f + 0.134145f * (x * x));
}
