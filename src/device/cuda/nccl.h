/* Collectives over the GPUs of all ranks, by NCCL, which is opened at run time. Called like a kernel's launcher: queued on a stream, so
 * that a CUDA graph captures them; all ranks queue the same ones in the same order. */
#pragma once

#include "device/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Makes this rank's communicator, among cuda->comm's ranks. */
NODISCARD Status cuda_nccl_open(CudaDevice *cuda);
/* A first collective of each kind, whose result is known. */
NODISCARD Status cuda_nccl_try(CudaDevice *cuda);
/* A rank has failed: the collectives that are queued end. Doesn't wait. */
void cuda_nccl_end(CudaDevice *cuda);
/* After graphs that hold collectives were destroyed, and after the last cuda_nccl_end. */
void cuda_nccl_close(CudaDevice *cuda);

/* recv: all ranks' `bytes` in their order. send may be this rank's place in recv. */
NODISCARD Status cuda_nccl_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream);
/* send: ranks * count elements, recv: count; floats only. Along NCCL's rings: bf16 is rounded at each rank on the way. */
NODISCARD Status cuda_nccl_reduce_scatter(CudaDevice *cuda, const void *send, void *recv, size_t count, DType dtype, cudaStream_t stream);
#ifdef __cplusplus
}
#endif
