/* Collectives by the GPUs' copy engines, for ranks that are threads of one process and whose GPUs reach one another's memory: each rank
 * reads what it wants of the others. A GPU waits for the others by itself, and no multiprocessor does anything but add up. Queued on a
 * stream like NCCL's (nccl.h): all ranks queue the same ones in the same order, on one stream at a time. */
#pragma once

#include "device/cuda/kernel.h"

enum { CUDA_MOST_PEERS = 16 };

#ifdef __cplusplus
extern "C" {
#endif
/* Whether these GPUs are different ones, and each reaches the memory of all others. */
bool cuda_peers_reach(const int *gpus, int count);
/* Whether the driver lets a stream wait for a word of memory, and GPUs share memory. */
bool cuda_peers_can(CudaDevice *cuda);

/* Of cuda->comm's ranks, whose GPUs these are. */
NODISCARD Status cuda_peers_open(CudaDevice *cuda, const int *gpus);
/* A first collective, whose result is known. */
NODISCARD Status cuda_peers_try(CudaDevice *cuda);
/* A rank has failed: the collectives that are queued end, whatever they write, and no launch comes after them. Doesn't wait. */
void cuda_peers_end(CudaDevice *cuda);
/* After graphs that hold collectives were destroyed, and after the last cuda_peers_end. */
void cuda_peers_close(CudaDevice *cuda);

/* Memory of this GPU that the others read too; every collective's is of it, or pinned. ERR_NO_FIT: there is none left. */
NODISCARD Status cuda_peers_alloc(CudaDevice *cuda, size_t bytes, void **out);
/* false: it isn't from there. */
bool cuda_peers_free(CudaDevice *cuda, void *memory);

/* Around what queues launches; enter fails with ERR_RANK once a rank has. */
NODISCARD Status cuda_peers_enter(CudaDevice *cuda);
void             cuda_peers_leave(CudaDevice *cuda);
/* Before memory is freed that others' GPUs may read. false: a rank has failed, and another's GPU still does after 5 s. */
bool cuda_peers_settled(CudaDevice *cuda);

/* recv: all ranks' `bytes` in their order. send may be this rank's place in recv. */
NODISCARD Status cuda_peers_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream);
/* Between begin and end others' memory may be read, and own memory is read by others: of[r] is where rank r has its `send` of `bytes`. */
NODISCARD Status cuda_peers_begin_reads(CudaDevice *cuda, const void *send, size_t bytes, const void *of[CUDA_MOST_PEERS],
                                        cudaStream_t stream);
NODISCARD Status cuda_peers_end_reads(CudaDevice *cuda, cudaStream_t stream);
#ifdef __cplusplus
}
#endif
