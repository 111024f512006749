/* The plugin doesn't link the driver, so the driver's function is looked up by name. */
#include "device/cuda/tensor_map.h"

#include <cudaTypedefs.h>

enum { FIRST_WITH_MAPS = 12000 };

static PFN_cuTensorMapEncodeTiled_v12000 encoder(void)
{
    void                                *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, FIRST_WITH_MAPS, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? (PFN_cuTensorMapEncodeTiled_v12000)found : NULL;
}

Status cuda_tensor_map(const void *data, const TensorMapShape *shape, CUtensorMap *out)
{
    PFN_cuTensorMapEncodeTiled_v12000 encode = encoder();
    const uint32_t                    ones[TENSOR_MAP_DIMS] = {1, 1, 1, 1, 1};
    FAIL_IF(!encode, ERR_DEVICE, "the CUDA driver has no cuTensorMapEncodeTiled: one for CUDA 12 or later is needed on this GPU");
    CUtensorMapSwizzle swizzle = shape->box[0] == TENSOR_MAP_INNER ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
    CUresult result = encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)shape->rank, (void *)data, (const cuuint64_t *)shape->dims,
                             (const cuuint64_t *)shape->strides, shape->box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    FAIL_IF(result != CUDA_SUCCESS, ERR_DEVICE, "cuTensorMapEncodeTiled: error %d", (int)result);
    return OK;
}
