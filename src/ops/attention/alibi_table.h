/* The slopes of ALiBi (Press, Smith and Lewis 2022). */
#pragma once

#include "ops/attrs.h"

#include <math.h>

#ifdef __CUDACC__
#define ALIBI_FN static __host__ __device__ inline
#else
#define ALIBI_FN static inline
#endif

/* The slope of a head. For n heads, n a power of two, slopes are 2^(-8 / n), 2^(-16 / n), ... For other counts: the slopes for n heads, n
 * being the next lower power of two, then every second slope for 2 n heads. */
ALIBI_FN double alibi_slope(const AlibiTableAttrs *a, int64_t head)
{
    int64_t n = 1;
    if (a->slopes.count) return a->slopes.values[head];
    while (2 * n <= a->num_heads) n *= 2;
    return head < n ? exp2(-8.0 * (double)(head + 1) / (double)n) : exp2(-4.0 * (double)(2 * (head - n) + 1) / (double)n);
}
