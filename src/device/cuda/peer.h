/* Collectives by the GPUs' copy engines, for ranks that are threads of one process and whose GPUs can access one another's memory. Each
 * rank reads the data it needs from the others. A GPU waits for the others without the host, and its multiprocessors are used only for
 * sums. Collectives are queued on a stream as with NCCL (nccl.h): all ranks must queue the same ones in the same order, on one stream at
 * a time. */
#pragma once

#include "device/cuda/kernel.h"

enum { CUDA_MOST_PEERS = 16 };

#ifdef __cplusplus
extern "C" {
#endif
/* Whether the GPUs are all different, and each can access the memory of all others. */
bool cuda_peers_reach(const int *gpus, int count);
/* Whether the driver supports waiting for a word of memory on a stream, and memory that several GPUs can access. */
bool cuda_peers_can(CudaDevice *cuda);

/* Opens this backend for cuda->comm's ranks. gpus: by rank, the index of its GPU. */
NODISCARD Status cuda_peers_open(CudaDevice *cuda, const int *gpus);
/* Runs a first collective and checks its result. */
NODISCARD Status cuda_peers_try(CudaDevice *cuda);
/* Ends the queued collectives after a rank has failed, whatever they write, and stops further launches. Doesn't wait. */
void cuda_peers_end(CudaDevice *cuda);
/* Call it after graphs that hold collectives were destroyed, and after the last cuda_peers_end. */
void cuda_peers_close(CudaDevice *cuda);

/* Allocates memory of this GPU that other ranks' GPUs can read. Collectives may only use such memory, or pinned memory. ERR_NO_FIT: out
 * of memory. */
NODISCARD Status cuda_peers_alloc(CudaDevice *cuda, size_t bytes, void **out);
/* false: the memory is not from cuda_peers_alloc. */
bool cuda_peers_free(CudaDevice *cuda, void *memory);

/* Enclose all code that queues launches. cuda_peers_enter fails with ERR_RANK after a rank has failed. */
NODISCARD Status cuda_peers_enter(CudaDevice *cuda);
void             cuda_peers_leave(CudaDevice *cuda);
/* Call it before freeing memory that others' GPUs may read. If a rank has failed, waits until other GPUs no longer read. false: one
 * still may after 5 s, so don't free. */
bool cuda_peers_settled(CudaDevice *cuda);

/* recv: `bytes` of each rank, in the order of ranks. send may be this rank's part of recv. */
NODISCARD Status cuda_peers_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream);
/* Between begin and end, ranks may read one another's memory. of[r]: address of rank r's `send`, of `bytes` bytes. */
NODISCARD Status cuda_peers_begin_reads(CudaDevice *cuda, const void *send, size_t bytes, const void *of[CUDA_MOST_PEERS],
                                        cudaStream_t stream);
NODISCARD Status cuda_peers_end_reads(CudaDevice *cuda, cudaStream_t stream);
#ifdef __cplusplus
}
#endif
