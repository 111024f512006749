/* The buckets of distances of T5 (Raffel et al. 2020). */
#pragma once

#include "ops/attrs.h"

#include <math.h>

#ifdef __CUDACC__
#define BUCKET_FN static __host__ __device__ inline
#else
#define BUCKET_FN static inline
#endif

/* The bucket of a distance >= 0, among n buckets. The first n / 2 hold one distance each; the ranges of the others grow logarithmically up
 * to distance `most`. The 1e-6 keeps rounding from putting a distance one bucket too low. */
BUCKET_FN int64_t bucket_of_distance(int64_t distance, int64_t n, int64_t most)
{
    int64_t exact = n / 2;
    if (distance < exact) return distance;
    double  share = log((double)distance / (double)exact) / log((double)most / (double)exact);
    int64_t bucket = exact + (int64_t)(share * (double)(n - exact) + 1e-6);
    return bucket < n - 1 ? bucket : n - 1;
}

/* The bucket of row i of a bias table (see attention). Keys after the query have the second half of the buckets. */
BUCKET_FN int64_t distance_bucket(const DistanceBucketsAttrs *a, int64_t i)
{
    if (!a->bidirectional) return bucket_of_distance(i, a->buckets, a->most);
    int64_t distance = i - a->len / 2, half = a->buckets / 2;
    return distance < 0 ? half + bucket_of_distance(-distance, half, a->most) : bucket_of_distance(distance, half, a->most);
}
