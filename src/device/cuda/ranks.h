/* This rank's GPU among the GPUs of all ranks: chooses the backend of its collectives (peer.h, nccl.h), and ends them when a rank fails. */
#pragma once

#include "device/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif
/* DeviceApi.join: chooses backends, opens them, and tries them. */
NODISCARD Status cuda_ranks_join(CudaDevice *cuda, Comm *comm);
/* Call it after graphs that hold collectives were destroyed. */
void cuda_ranks_close(CudaDevice *cuda);

/* OK, or ERR_RANK after a rank has failed: then results of collectives are invalid. */
NODISCARD Status cuda_ranks_alive(CudaDevice *cuda);
/* Fails unless the device has joined as many ranks as a program was made for. */
NODISCARD Status cuda_ranks_check(CudaDevice *cuda, int64_t ranks);
int              cuda_ranks_rank(CudaDevice *cuda);

/* Whether gather, and below reduce, use copy engines. Before the device has joined: whether they would if the ranks used this machine's
 * first GPUs. */
bool cuda_ranks_gather_by_copies(CudaDevice *cuda, int64_t ranks);
bool cuda_ranks_reduce_by_copies(CudaDevice *cuda, int64_t ranks);
/* recv: `bytes` of each rank, in the order of ranks. send may be this rank's part of recv. */
NODISCARD Status cuda_ranks_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream);
#ifdef __cplusplus
}
#endif
