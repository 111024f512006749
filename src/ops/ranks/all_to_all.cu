/* all_to_all on CUDA.
 *
 * copies: each rank copies its parts from the others' memory.
 * nccl: for each rank in turn, all ranks gather its parts, but only that rank keeps them. This moves more bytes than needed, but uses
 * existing connections: to send from rank to rank NCCL would make new ones, with buffers of their own. */
#include "device/cuda/peer.h"
#include "device/cuda/ranks.h"
#include "ops/attrs.h"

static Status exchange_by_copies(const KernelArgs *args)
{
    const RanksAttrs *attrs = (const RanksAttrs *)args->attrs;
    CudaDevice       *cuda = (CudaDevice *)args->device;
    const int         ranks = (int)attrs->ranks, rank = cuda_ranks_rank(cuda);
    const size_t      bytes = (size_t)type_bytes(&args->in[0].type), part = bytes / (size_t)ranks;
    const void       *of[CUDA_MOST_PEERS];
    TRY(cuda_ranks_check(cuda, attrs->ranks));
    TRY(cuda_peers_begin_reads(cuda, args->in[0].data, bytes, of, cuda_stream(args)));
    for (int i = 0; i < ranks; i++) {
        int other = (rank + i) % ranks;
        CUDA_TRY(cudaMemcpyAsync((char *)args->out[0].data + (size_t)other * part, (const char *)of[other] + (size_t)rank * part, part,
                                 cudaMemcpyDefault, cuda_stream(args)));
    }
    return cuda_peers_end_reads(cuda, cuda_stream(args));
}

static Status exchange_by_gathers(const KernelArgs *args)
{
    const RanksAttrs *attrs = (const RanksAttrs *)args->attrs;
    CudaDevice       *cuda = (CudaDevice *)args->device;
    const int         ranks = (int)attrs->ranks, rank = cuda_ranks_rank(cuda);
    const size_t      bytes = (size_t)type_bytes(&args->in[0].type), part = bytes / (size_t)ranks;
    TRY(cuda_ranks_check(cuda, attrs->ranks));
    if (ranks == 1) CUDA_TRY(cudaMemcpyAsync(args->out[0].data, args->in[0].data, bytes, cudaMemcpyDefault, cuda_stream(args)));
    for (int r = 0; r < ranks && ranks > 1; r++) {
        void *to = r == rank ? args->out[0].data : args->workspace;
        TRY(cuda_ranks_all_gather(cuda, (const char *)args->in[0].data + (size_t)r * part, to, part, cuda_stream(args)));
    }
    return OK;
}

static bool is_by_copies(const Node *node, CudaDevice *device)
{
    return cuda_ranks_gather_by_copies(device, ((const RanksAttrs *)node->attrs)->ranks);
}

static size_t gathers_workspace(const Node *node, CudaDevice *device)
{
    (void)device;
    return ((const RanksAttrs *)node->attrs)->ranks > 1 ? (size_t)type_bytes(&node->out[0]->type) : 0;
}

CUDA_KERNELS(all_to_all, {.dtypes = DT_SET_FLOAT, .run = exchange_by_copies, .name = "copies", .match = is_by_copies},
             {.dtypes = DT_SET_FLOAT, .run = exchange_by_gathers, .name = "nccl", .workspace = gathers_workspace})
