/* The function that swiglu applies to a gate and an up value. */
#pragma once

#include "ops/elementwise/gelu.h"
#include "ops/rows.cuh"

/* silu(g) u, or gelu(g) u; T: their dtype */
template <typename T, bool GELU> static __device__ __forceinline__ float gated(float g, float u)
{
    return u * (g / (1.0f + exp_for<T>(-(GELU ? gelu_argument(g) : g))));
}
