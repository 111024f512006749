/* The output head with its loss on CUDA, by chunks of rows. A chunk's logits are in the workspace in x's dtype and become dlogits in place;
 * then the products for dx and dw run. Chunks depend only on shapes and attributes. If dw is summed in fp32 (sums_apart), the sum is in the
 * workspace after the logits. */
#pragma once

#include "device/cuda/vec_f16.cuh"
#include "ops/loss/cross_entropy.cuh"
#include "ops/loss/lm_head_chunks.h"
#include "ops/map.cuh"
#include "ops/products/linear.cuh"

typedef struct LmHead {
    TensorView     x, w, dx, dw; /* x (...,C), w (V,C); dx, dw: data NULL: not wanted */
    const int32_t *labels;
    const float   *dlosses; /* NULL: only losses are computed */
    float         *losses;  /* NULL: not wanted */
    float         *hits;    /* NULL: not wanted */
    bool           accumulate;
    int64_t        chunks; /* argument least_chunks of lm_head_chunk_rows */
    float          softcap;
    bool           sums_apart; /* dw of all chunks is summed in the workspace in fp32, and rounded once */
} LmHead;

struct SumOf {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

/* Stores the sum of all chunks in dw, or adds it if h->accumulate. */
static Status lm_head_store_sum(const LmHead *h, const TensorView *sum, const KernelArgs *args)
{
    TensorView none = {};
    int64_t    count = type_numel(&sum->type);
    map_elements<<<cuda_grid(count, MAP_THREADS), MAP_THREADS, 0, cuda_stream(args)>>>(*sum, h->accumulate ? h->dw : none, h->dw, 0, count,
                                                                                       SumOf());
    return CUDA_LAUNCHED();
}

/* Prepares (is_run false) or runs the products of each chunk. When run, losses are computed between the products. */
static Status lm_head_chunks(const LmHead *h, const KernelArgs *args, bool is_run)
{
    CudaDevice *device = (CudaDevice *)args->device;
    DType       dtype = h->x.type.dtype;
    int64_t     rows = type_rows(&h->x.type), vocab = h->w.type.dim[0];
    int64_t     step = rows ? lm_head_chunk_rows(rows, dtype_bytes(dtype, vocab), h->dw.data != NULL, h->chunks) : 1;
    TensorView  sum = {(char *)args->workspace + LINEAR_WORKSPACE + step * dtype_bytes(dtype, vocab), h->w.type};
    sum.type.dtype = DT_F32;
    for (int64_t row = 0; row < rows; row += step) {
        int64_t    count = rows - row < step ? rows - row : step;
        TensorView logits = {(char *)args->workspace + LINEAR_WORKSPACE, type_make(dtype, 2, count, vocab)};
        Gemm       gemms[3] = {head_logits_product(&h->x, &h->w, row, count, &logits)};
        int        num = 1;
        if (h->dx.data) gemms[num++] = head_dx_product(&logits, &h->w, row, count, &h->dx);
        if (h->dw.data)
            gemms[num++] =
                head_dw_product(&logits, &h->x, row, count, h->sums_apart ? &sum : &h->dw, row > 0 || (h->accumulate && !h->sums_apart));
        for (int i = 0; i < num; i++) {
            if (!is_run) {
                TRY(cuda_gemm_prepare(device, &gemms[i], args->workspace, LINEAR_WORKSPACE));
                continue;
            }
            TRY(cuda_gemm_run(device, &gemms[i], args->workspace, LINEAR_WORKSPACE, args->stream));
            if (i > 0) continue;
            CUDA_FLOAT_ANY(dtype, T,
                           launch_loss_rows<T>((T *)logits.data, h->labels + row, h->dlosses ? h->dlosses + row : NULL, count, vocab,
                                               h->losses ? h->losses + row : NULL, NULL, h->hits ? h->hits + row : NULL, h->softcap,
                                               cuda_stream(args)));
            TRY(CUDA_LAUNCHED());
        }
    }
    if (is_run && h->sums_apart) TRY(lm_head_store_sum(h, &sum, args));
    if (is_run && h->dw.data && !rows && !h->accumulate)
        CUDA_TRY(cudaMemsetAsync(h->dw.data, 0, (size_t)type_bytes(&h->dw.type), cuda_stream(args)));
    return OK;
}
