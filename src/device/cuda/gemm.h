/* Matrix products through cuBLASLt, and a plain kernel for what it doesn't do (mixed dtypes, odd alignment). */
#pragma once

#include "device/cuda/kernel.h"

/* c (m,n) (+)= alpha op(a) op(b) + bias, row-major as in ops/gemm.h: op(a) (m,k), op(b) (k,n); trans_a: a is stored
 * (k,m); trans_b: b is stored (n,k). Strides: elements from a stored row to the next. Sums are fp32 (fp32 operands: no
 * TF32). */
typedef struct CudaGemm {
    int64_t     m, n, k;
    bool        trans_a, trans_b, accumulate;
    DType       a_dtype, b_dtype, c_dtype, bias_dtype;
    float       alpha;
    int64_t     a_stride, b_stride, c_stride;
    int64_t     a_offset, b_offset, c_offset; /* elements from a, b, c to the first */
    const void *a, *b, *bias;                 /* bias (n); NULL: none. a, b, c NULL while planning: well aligned */
    void       *c;
} CudaGemm;

#ifdef __cplusplus
extern "C" {
#endif
/* Whether cuBLASLt does it. Data are not looked at, but bias: any non-NULL pointer where there will be one. */
bool cuda_gemm_supported(CudaDevice *device, const CudaGemm *gemm);
/* Measures the algorithms for this shape unless it is known from an earlier call or the cache on disk. Overwrites and
 * zeroes a, b, c. */
Status cuda_gemm_prepare(CudaDevice *device, const CudaGemm *gemm, void *workspace, size_t workspace_bytes);
Status cuda_gemm_run(CudaDevice *device, const CudaGemm *gemm, void *workspace, size_t workspace_bytes, void *stream);
/* Any dtypes and strides, by a plain tiled kernel. */
Status cuda_gemm_plain(const CudaGemm *gemm, void *stream);
/* Random values for measuring: bf16 or fp32 in [-1, 1). Rows of `cols` elements, `stride` apart. */
Status cuda_fill_random(void *data, DType dtype, int64_t rows, int64_t cols, int64_t stride, void *stream);
/* Whether the plugin has code for this GPU. */
Status cuda_kernels_check(CudaDevice *device);

void cuda_gemm_save(CudaDevice *device); /* writes what was measured since the last call to the cache on disk */
void cuda_gemm_close(CudaDevice *device);
/* The algorithms chosen so far, as text that begins with library version and GPU; and taking it where those are the
 * same. */
void cuda_gemm_export(CudaDevice *device, char *out, size_t size);
void cuda_gemm_import(CudaDevice *device, const char *text);
#ifdef __cplusplus
}
#endif
