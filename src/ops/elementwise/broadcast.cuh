/* Ops of up to three inputs that broadcast. A thread block computes pieces of rows, or several whole rows if they are short. For two
 * inputs of equal dims map.cuh is used instead. */
#pragma once

#include "ops/map.cuh"

#include "ops/elementwise/broadcast.h"

enum { SPREAD_THREADS = 256, SPREAD_PIECE = 4096 };

typedef struct Spread {
    TensorView in[BROADCAST_MAX_IN], y; /* in[k].data NULL: an absent input, all zeros */
    Broadcast  plan;
    int64_t    rows, cols, pieces;
} Spread;

/* A block takes blockDim.y rows at a time, and a piece of each; blockDim.x threads share the columns. */
template <typename F> static __global__ void spread_rows(Spread s, F f)
{
    int last = s.plan.ndim - 1;
    for (int64_t item = blockIdx.x; item < cuda_div_up_device(s.rows, blockDim.y) * s.pieces; item += gridDim.x) {
        int64_t row = item / s.pieces * blockDim.y + threadIdx.y, begin = item % s.pieces * SPREAD_PIECE;
        int64_t end = begin + SPREAD_PIECE < s.cols ? begin + SPREAD_PIECE : s.cols, offset[BROADCAST_MAX_IN];
        float   one[BROADCAST_MAX_IN];
        if (row >= s.rows) continue;
#pragma unroll
        for (int k = 0; k < BROADCAST_MAX_IN; k++) {
            offset[k] = broadcast_offset(&s.plan, k, row);
            one[k] = s.in[k].data ? any_get(s.in[k].data, s.in[k].type.dtype, offset[k]) : 0.0f;
        }
        for (int64_t c = begin + threadIdx.x; c < end; c += blockDim.x) {
            float v[BROADCAST_MAX_IN];
#pragma unroll
            for (int k = 0; k < BROADCAST_MAX_IN; k++)
                v[k] = s.plan.step[k][last] ? any_get(s.in[k].data, s.in[k].type.dtype, offset[k] + c) : one[k];
            any_set(s.y.data, s.y.type.dtype, row * s.cols + c, f(v[0], v[1], v[2]));
        }
    }
}

template <typename F> struct OfTwo {
    F f;

    __device__ float operator()(float a, float b) const
    {
        return f(a, b, 0.0f);
    }
};

/* out[0] = f(in[0], in[1], in[2]); an absent input is 0. F: __device__ float operator()(float, float, float). */
template <typename F> static Status broadcast_run(const KernelArgs *args, F f)
{
    if (args->num_in == 2 && type_same_dims(&args->in[0].type, &args->in[1].type)) return map_run(args, OfTwo<F>{f});
    Spread s = {};
    for (int k = 0; k < args->num_in; k++) s.in[k] = args->in[k];
    s.y = args->out[0];
    s.plan = broadcast_plan(args);
    s.cols = s.plan.dim[s.plan.ndim - 1];
    s.rows = type_numel(&s.y.type) / s.cols;
    s.pieces = cuda_div_up(s.cols, SPREAD_PIECE);
    unsigned wide = 1;
    while (wide < SPREAD_THREADS && wide < s.cols) wide *= 2;
    dim3 threads(wide, SPREAD_THREADS / wide);
    spread_rows<<<cuda_grid(cuda_div_up(s.rows, threads.y) * s.pieces, 1), threads, 0, cuda_stream(args)>>>(s, f);
    return CUDA_LAUNCHED();
}
