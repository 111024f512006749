/* Matrix products (device/gemm.h) through cuBLASLt, and a plain kernel for what it doesn't do (mixed dtypes, odd
 * alignment). */
#pragma once

#include "device/cuda/kernel.h"
#include "device/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Whether cuBLASLt does it; data that aren't known yet count as well aligned. */
bool cuda_gemm_supported(CudaDevice *device, const Gemm *gemm);
/* Whether it multiplies FP8 with scales of blocks: on sm_90 alone, from cuBLAS 12.9 on. */
bool cuda_gemm_has_blocks(const CudaDevice *device);
/* Whether it multiplies FP4 with scales of blocks: from sm_100 and cuBLAS 12.8 on. */
bool cuda_gemm_has_fp4(const CudaDevice *device);
/* Measures the algorithms for this shape unless it is known from an earlier call or the cache on disk. Overwrites and
 * zeroes a, b, c. */
Status cuda_gemm_prepare(CudaDevice *device, const Gemm *gemm, void *workspace, size_t workspace_bytes);
/* All ranks know the algorithms that rank 0 knows, and no others; each calls it. */
Status cuda_gemm_share(CudaDevice *device, Comm *comm);
Status cuda_gemm_run(CudaDevice *device, const Gemm *gemm, void *workspace, size_t workspace_bytes, void *stream);
/* Any dtypes and strides, by a plain tiled kernel. */
Status cuda_gemm_plain(const Gemm *gemm, void *stream);
/* out[0] = alpha times the scales of a and b, out[1] = what c is multiplied by: on the device, where both scales are. */
Status cuda_gemm_factors(const Gemm *gemm, float *out, void *stream);
/* Random values for measuring: bf16, fp32 or FP8 in [-1, 1), or any codes of FP4. Rows of `cols` elements, `stride` apart. */
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
