/* Collectives over the GPUs of all ranks by NCCL, which is opened at run time. They are called like a kernel's launcher and queued on a
 * stream, so that a CUDA graph can capture them. All ranks must queue the same collectives in the same order. */
#pragma once

#include "device/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Creates this rank's communicator over the ranks of cuda->comm. */
NODISCARD Status cuda_nccl_open(CudaDevice *cuda);
/* Runs a first collective of each kind and checks its result. */
NODISCARD Status cuda_nccl_try(CudaDevice *cuda);
/* Ends the queued collectives after a rank has failed. Doesn't wait. */
void cuda_nccl_end(CudaDevice *cuda);
/* Call it after graphs that hold collectives were destroyed, and after the last cuda_nccl_end. */
void cuda_nccl_close(CudaDevice *cuda);

/* recv: `bytes` of each rank, in the order of ranks. send may be this rank's part of recv. */
NODISCARD Status cuda_nccl_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream);
/* send: ranks * count elements, recv: count elements; floats only. Sums run along NCCL's rings, where each rank on the way rounds bf16. */
NODISCARD Status cuda_nccl_reduce_scatter(CudaDevice *cuda, const void *send, void *recv, size_t count, DType dtype, cudaStream_t stream);
#ifdef __cplusplus
}
#endif
