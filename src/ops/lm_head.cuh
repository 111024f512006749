/* The output head with its loss on CUDA, by chunks of rows: logits of a chunk lie in the workspace in x's dtype and
 * become dlogits in place; then the products for dx and dw. Chunks depend on shapes alone. */
#pragma once

#include "ops/cross_entropy.cuh"
#include "ops/linear.cuh"
#include "ops/lm_head_chunks.h"

typedef struct LmHead {
    int64_t        rows, channels, vocab;
    DType          x_dtype, w_dtype, dx_dtype, dw_dtype;
    const void    *x, *w;
    const int32_t *labels;
    const float   *dlosses; /* NULL: losses alone */
    float         *losses;  /* NULL: not wanted */
    void          *dx, *dw; /* NULL: not wanted */
    bool           accumulate;
} LmHead;

static int64_t chunk_rows(const LmHead *h)
{
    return lm_head_chunk_rows(h->rows, dtype_bytes(h->x_dtype, h->vocab));
}

static size_t lm_head_workspace(const LmHead *h)
{
    return LINEAR_WORKSPACE + (size_t)dtype_bytes(h->x_dtype, chunk_rows(h) * h->vocab);
}

static CudaGemm logits_gemm(const LmHead *h, int64_t row, int64_t rows, void *logits)
{
    CudaGemm g = {};
    g.m = rows, g.n = h->vocab, g.k = h->channels;
    g.trans_b = true;
    g.alpha = 1;
    g.a_dtype = g.c_dtype = h->x_dtype, g.b_dtype = h->w_dtype;
    g.a_stride = g.b_stride = h->channels, g.c_stride = h->vocab;
    g.a = h->x, g.a_offset = row * h->channels;
    g.b = h->w, g.c = logits;
    return g;
}

static CudaGemm dx_gemm(const LmHead *h, int64_t row, int64_t rows, void *dlogits)
{
    CudaGemm g = {};
    g.m = rows, g.n = h->channels, g.k = h->vocab;
    g.alpha = 1;
    g.a_dtype = h->x_dtype, g.b_dtype = h->w_dtype, g.c_dtype = h->dx_dtype;
    g.a_stride = h->vocab, g.b_stride = g.c_stride = h->channels;
    g.a = dlogits, g.b = h->w;
    g.c = h->dx, g.c_offset = row * h->channels;
    return g;
}

static CudaGemm dw_gemm(const LmHead *h, int64_t row, int64_t rows, void *dlogits)
{
    CudaGemm g = {};
    g.m = h->vocab, g.n = h->channels, g.k = rows;
    g.trans_a = true;
    g.alpha = 1;
    g.accumulate = h->accumulate || row > 0;
    g.a_dtype = g.b_dtype = h->x_dtype, g.c_dtype = h->dw_dtype;
    g.a_stride = h->vocab, g.b_stride = g.c_stride = h->channels;
    g.a = dlogits, g.b = h->x, g.b_offset = row * h->channels;
    g.c = h->dw;
    return g;
}

/* Each product of each chunk through `each` (prepare or run); losses between them where `is_run`. */
static Status lm_head_chunks(const LmHead *h, const KernelArgs *args, bool is_run)
{
    CudaDevice *device = (CudaDevice *)args->device;
    char       *logits = (char *)args->workspace + LINEAR_WORKSPACE;
    int64_t     step = h->rows ? chunk_rows(h) : 1;
    for (int64_t row = 0; row < h->rows; row += step) {
        int64_t  rows = h->rows - row < step ? h->rows - row : step;
        CudaGemm gemms[3] = {logits_gemm(h, row, rows, logits)};
        int      count = 1;
        if (h->dx) gemms[count++] = dx_gemm(h, row, rows, logits);
        if (h->dw) gemms[count++] = dw_gemm(h, row, rows, logits);
        for (int i = 0; i < count; i++) {
            if (!is_run) {
                TRY(cuda_gemm_prepare(device, &gemms[i], args->workspace, LINEAR_WORKSPACE));
                continue;
            }
            TRY(cuda_gemm_run(device, &gemms[i], args->workspace, LINEAR_WORKSPACE, args->stream));
            if (i > 0) continue;
            CUDA_FLOAT(h->x_dtype, T,
                       launch_loss_rows<T>((T *)logits, h->labels + row, h->dlosses ? h->dlosses + row : NULL, rows,
                                           h->vocab, h->losses ? h->losses + row : NULL, NULL, cuda_stream(args)));
            TRY(CUDA_LAUNCHED());
        }
    }
    if (is_run && h->dw && !h->rows && !h->accumulate)
        CUDA_TRY(
            cudaMemsetAsync(h->dw, 0, (size_t)dtype_bytes(h->dw_dtype, h->vocab * h->channels), cuda_stream(args)));
    return OK;
}
