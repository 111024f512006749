#include "device/cuda/sdpa.h"
#include "device/cuda/cuda.h"
bool cuda_sdpa_supported(CudaDevice *device, const CudaSdpa *sdpa) { (void)device; (void)sdpa; return false; }
size_t cuda_sdpa_workspace(CudaDevice *device, const CudaSdpa *sdpa) { (void)device; (void)sdpa; return 0; }
Status cuda_sdpa_run(CudaDevice *device, const CudaSdpa *sdpa, void *workspace, void *stream) { (void)device; (void)sdpa; (void)workspace; (void)stream; return ERR_UNSUPPORTED; }
void cuda_sdpa_close(CudaDevice *device) { (void)device; }
