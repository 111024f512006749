/* Matrix products (device/gemm.h) through cuBLASLt, and a plain kernel for products that it doesn't support (mixed dtypes, odd
 * alignment). */
#pragma once

#include "device/cuda/kernel.h"
#include "device/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Whether cuBLASLt supports the product; data that is still NULL counts as well aligned. */
bool cuda_gemm_supported(CudaDevice *device, const Gemm *gemm);
/* Whether cuBLASLt supports FP8 with scales of blocks: only on sm_90, from cuBLAS 12.9 on. */
bool cuda_gemm_has_blocks(const CudaDevice *device);
/* Whether cuBLASLt supports FP4 with scales of blocks: from sm_100 and cuBLAS 12.8 on. */
bool cuda_gemm_has_fp4(const CudaDevice *device);
/* Chooses an algorithm by measuring, unless one is known for this shape from an earlier call or the cache on disk. Overwrites and zeroes
 * a, b, c. */
Status cuda_gemm_prepare(CudaDevice *device, const Gemm *gemm, void *workspace, size_t workspace_bytes);
/* Replaces the known algorithms of all ranks by rank 0's. All ranks must call it. */
Status cuda_gemm_share(CudaDevice *device, Comm *comm);
Status cuda_gemm_run(CudaDevice *device, const Gemm *gemm, void *workspace, size_t workspace_bytes, void *stream);
/* Runs a plain tiled kernel, for any dtypes and strides. */
Status cuda_gemm_plain(const Gemm *gemm, void *stream);
/* The same for `count` products of equal dims. The offsets of their a, b and c are `steps` elements apart. */
Status cuda_gemm_plain_groups(const Gemm *first, int64_t count, const int64_t steps[3], void *stream);
/* out[0] = alpha times the scales of a and b; out[1] = the factor of c's old contents (0 or 1). Computed on the device, where the scales
 * are. */
Status cuda_gemm_factors(const Gemm *gemm, float *out, void *stream);
/* Fills in random values for measuring: bf16, fp32 or FP8 in [-1, 1), or any FP4 codes. Rows have `cols` elements and begin `stride`
 * elements apart. */
Status cuda_fill_random(void *data, DType dtype, int64_t rows, int64_t cols, int64_t stride, void *stream);
/* OK if the plugin was built for this GPU, else ERR_UNSUPPORTED. */
Status cuda_kernels_check(CudaDevice *device);

void cuda_gemm_save(CudaDevice *device); /* writes the cache on disk, if there are new measurements */
void cuda_gemm_close(CudaDevice *device);
/* Writes the algorithms chosen so far as text, with library version and GPU in its first line. Below, cuda_gemm_import reads such a text
 * back; another version or GPU is ignored. */
void cuda_gemm_export(CudaDevice *device, char *out, size_t size);
void cuda_gemm_import(CudaDevice *device, const char *text);
#ifdef __cplusplus
}
#endif
