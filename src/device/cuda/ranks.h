/* This rank's GPU among those of all ranks: which backend its collectives go by (peer.h, nccl.h), and failing together. */
#pragma once

#include "device/cuda/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif
/* DeviceApi.join: chooses backends, makes them ready, and tries them. */
NODISCARD Status cuda_ranks_join(CudaDevice *cuda, Comm *comm);
/* After graphs that hold collectives were destroyed. */
void cuda_ranks_close(CudaDevice *cuda);

/* OK, or ERR_RANK once a rank has failed: then what collectives wrote means nothing. */
NODISCARD Status cuda_ranks_alive(CudaDevice *cuda);
/* The device speaks for one of as many ranks as a program was made for. */
NODISCARD Status cuda_ranks_check(CudaDevice *cuda, int64_t ranks);
int              cuda_ranks_rank(CudaDevice *cuda);

/* Whether copy engines do it, or would if the first of this machine's GPUs were the ranks' and the device isn't joined yet. */
bool cuda_ranks_gather_by_copies(CudaDevice *cuda, int64_t ranks);
bool cuda_ranks_reduce_by_copies(CudaDevice *cuda, int64_t ranks);
/* recv: all ranks' `bytes` in their order. send may be this rank's place in recv. */
NODISCARD Status cuda_ranks_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream);
#ifdef __cplusplus
}
#endif
