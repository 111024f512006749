/* The buckets of distances of T5 (Raffel et al. 2020). */
#pragma once

#include "ops/attrs.h"

#include <math.h>

#ifdef __CUDACC__
#define BUCKET_FN static __host__ __device__ inline
#else
#define BUCKET_FN static inline
#endif

/* Of a distance from 0 on among n buckets: half of them are of one distance, the others grow with the logarithm up to `most`. What is a
 * whole number but for rounding counts as one. */
BUCKET_FN int64_t bucket_of_distance(int64_t distance, int64_t n, int64_t most)
{
    int64_t exact = n / 2;
    if (distance < exact) return distance;
    double  share = log((double)distance / (double)exact) / log((double)most / (double)exact);
    int64_t bucket = exact + (int64_t)(share * (double)(n - exact) + 1e-6);
    return bucket < n - 1 ? bucket : n - 1;
}

/* The bucket of row i of a bias table (see attention). Those of keys after the query follow the others. */
BUCKET_FN int64_t distance_bucket(const DistanceBucketsAttrs *a, int64_t i)
{
    if (!a->bidirectional) return bucket_of_distance(i, a->buckets, a->most);
    int64_t distance = i - a->len / 2, half = a->buckets / 2;
    return distance < 0 ? half + bucket_of_distance(-distance, half, a->most) : bucket_of_distance(distance, half, a->most);
}
