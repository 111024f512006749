/* Shared by the kernels of head_rows.cu and head_stream.cu. */
#pragma once

#include "device/cuda/vec.cuh"

/* y (rows, cols) = scale * (x (rows, dim) w^T (vocab, dim)) + bias; columns from vocab on are 0. x is in the format that the kernels
 * read. */
struct Head {
    const void  *x, *w;
    const float *scale, *bias;
    float       *y;
    int          rows, dim;
    int64_t      vocab, cols;
};

static __device__ __forceinline__ void head_store(const Head &h, int b, int64_t v, float sum)
{
    if (b >= h.rows || v >= h.cols) return;
    if (v < h.vocab && h.scale) sum *= h.scale[v];
    if (v < h.vocab && h.bias) sum += h.bias[v];
    h.y[b * h.cols + v] = v < h.vocab ? sum : 0.0f;
}

struct HeadLaunch {
    int  processors, shared; /* shared: bytes that a block may have */
    bool early, w_constant;  /* early: KernelArgs.early; w_constant: nothing in the program writes w */
};

enum { HEAD_STREAM_ROWS = 8 };

/* shared: bytes that a block may have */
bool   head_stream_fits(int rows, int dim, DType w, int shared);
Status head_stream_run(const Head *h, DType w, const HeadLaunch *how, cudaStream_t stream);
