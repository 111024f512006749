/* Collectives over the GPUs of all ranks, by NCCL, which is opened at run time. Called like a kernel's launcher: queued on a stream, so
 * that a CUDA graph captures them; all ranks queue the same ones in the same order. */
#pragma once

#include "device/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif
/* DeviceApi.join: makes this rank's communicator, and tries it. */
NODISCARD Status cuda_nccl_join(CudaDevice *cuda, Comm *comm);
/* After graphs that hold collectives were destroyed. */
void cuda_nccl_close(CudaDevice *cuda);

/* recv: all ranks' `bytes` in their order. send may be this rank's place in recv. */
NODISCARD Status cuda_nccl_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream);
/* send: ranks * count elements, recv: count; floats only. Along NCCL's rings: bf16 is rounded at each rank on the way. */
NODISCARD Status cuda_nccl_reduce_scatter(CudaDevice *cuda, const void *send, void *recv, size_t count, DType dtype, cudaStream_t stream);
Comm            *cuda_nccl_comm(CudaDevice *cuda); /* NULL: one rank */
/* OK, or ERR_RANK once a rank has failed: then what collectives wrote means nothing. */
NODISCARD Status cuda_nccl_alive(CudaDevice *cuda);
/* The device speaks for one of as many ranks as a program was made for. */
NODISCARD Status cuda_nccl_check(CudaDevice *cuda, int64_t ranks);
#ifdef __cplusplus
}
#endif
