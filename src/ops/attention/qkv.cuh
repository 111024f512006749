/* Shared by qkv_norm_rope and its backward: a group of lanes of one warp has a head, each lane a pack of 16 bytes, so that the partner
 * element of a rotation is one shuffle away. Head sizes that don't fit this are computed element by element, by one warp a head. */
#pragma once

#include "ops/attrs.h"
#include "ops/rows.cuh"

typedef struct QkvDims {
    int64_t rows, num_q, num_kv, head_dim, table_len;
    float   eps, offset; /* offset: added to wq and wk */
} QkvDims;

static inline QkvDims qkv_dims(const QkvAttrs *attrs, const TensorType *qkv, const TensorType *table)
{
    QkvDims d = {type_rows(qkv), attrs->num_heads,  attrs->num_kv_heads, attrs->head_dim,
                 table->dim[0],  (float)attrs->eps, (float)attrs->offset};
    return d;
}

/* Lanes of a head at 16 bytes each; 0: the head isn't 16 bytes times a power of two from 2 to 32. */
static inline int head_lanes(int64_t head_dim, DType dtype)
{
    int64_t bytes = dtype_bytes(dtype, head_dim);
    for (int lanes = 2; lanes <= 32; lanes *= 2)
        if (bytes == lanes * 16) return lanes;
    return 0;
}

template <int LANES> static __device__ __forceinline__ float group_sum(float x)
{
#pragma unroll
    for (int offset = LANES / 2; offset; offset >>= 1) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
    return x;
}

/* This lane's part of a row of the table: cosines and sines of its pairs. Cosines are NaN if the position is outside the table. */
template <int N> struct QkvTableOf {
    float c[N], s[N];
};

template <int LANES, int N>
static __device__ __forceinline__ QkvTableOf<N> load_table(const float *table, int32_t position, int64_t len, int lane)
{
    const int     half = LANES * N / 2;
    bool          inside = position >= 0 && position < len;
    const float  *cosines = table + (inside ? (int64_t)position * 2 * half : 0) + (lane % (LANES / 2)) * N;
    QkvTableOf<N> t;
    load_n<N>(cosines, t.c);
    load_n<N>(cosines + half, t.s);
#pragma unroll
    for (int k = 0; k < N; k++) t.c[k] = inside ? t.c[k] : NAN;
    return t;
}

/* Rotates this lane's part v of a head; sign 1: forward, -1: back. All lanes of the warp must call it. */
template <int LANES, int N> static __device__ __forceinline__ void turn(float *v, const QkvTableOf<N> &t, int lane, float sign)
{
    float side = lane >= LANES / 2 ? sign : -sign;
#pragma unroll
    for (int k = 0; k < N; k++) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, v[k], LANES / 2);
        v[k] = v[k] * t.c[k] + side * other * t.s[k];
    }
}
