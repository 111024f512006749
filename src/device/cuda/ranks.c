/* See ranks.h. */
#include "device/cuda/ranks.h"

#include "base/log.h"
#include "comm/agree.h"
#include "device/cuda/cuda.h"
#include "device/cuda/gemm.h"
#include "device/cuda/nccl.h"
#include "device/cuda/peer.h"

/* ---- which backend ---- */

/* A rank's part in choosing a backend. */
typedef struct Offer {
    int     gpu;
    bool    can;
    CrossBy gather_by, reduce_by;
} Offer;

/* Why copy engines can't be used; NULL: they can. Sets gpus[r] to rank r's GPU. */
static const char *what_copies_lack(const Comm *comm, const Offer *offers, int *gpus)
{
    if (!comm->is_one_process) return "the ranks are processes, and copies want threads of one (gpus: N)";
    if (comm->size > CUDA_MOST_PEERS) return "there are more than 16 ranks";
    for (int r = 0; r < comm->size; r++) {
        gpus[r] = offers[r].gpu;
        if (!offers[r].can) return "the driver doesn't let a GPU wait for a word of memory, or share its memory";
    }
    return cuda_peers_reach(gpus, comm->size) ? NULL : "not each of these GPUs reaches the memory of all others";
}

static Status choose_one(CrossBy by, const char *lack, const char *keys, bool *out_by_copies)
{
    FAIL_IF(by == CROSS_COPIES && lack, ERR_UNSUPPORTED, "%s: true: %s; leave it out, or set it to false for NCCL", keys, lack);
    *out_by_copies = by != CROSS_NCCL && !lack;
    return OK;
}

static Status choose(CudaDevice *cuda, int *gpus)
{
    Offer  own = {cuda->index, cuda_peers_can(cuda), cuda->base.gather_by, cuda->base.reduce_by}, all[COMM_MOST_RANKS];
    Status status = comm_all_gather(cuda->comm, &own, all, sizeof own);
    for (int r = 0; r < cuda->comm->size && status == OK; r++)
        if (all[r].gather_by != all[0].gather_by || all[r].reduce_by != all[0].reduce_by)
            status = status_fail(ERR_INVALID,
                                 "rank %d has other memcpy_all_gather, memcpy_send_recv or use_all_to_all_reduce than rank 0: all need the "
                                 "same",
                                 r);
    TRY(status);
    const char *lack = what_copies_lack(cuda->comm, all, gpus);
    bool        is_news = own.gather_by != CROSS_NCCL || own.reduce_by != CROSS_NCCL;
    if (lack && is_news && cuda->comm->is_one_process && cuda->comm->rank == 0) log_info("GPUs send by NCCL: %s", lack);
    TRY(choose_one(own.gather_by, lack, "memcpy_all_gather", &cuda->gathers_by_copies));
    return choose_one(own.reduce_by, lack, "memcpy_send_recv or use_all_to_all_reduce", &cuda->reduces_by_copies);
}

/* Whether a run would use copies, asked before the device has joined. */
static bool would_copy(CrossBy by, int64_t ranks)
{
    int gpus[CUDA_MOST_PEERS], count = 0;
    if (by == CROSS_NCCL || ranks > CUDA_MOST_PEERS || cudaGetDeviceCount(&count) != cudaSuccess || count < ranks) return false;
    for (int r = 0; r < ranks; r++) gpus[r] = r;
    return cuda_peers_reach(gpus, (int)ranks);
}

bool cuda_ranks_gather_by_copies(CudaDevice *cuda, int64_t ranks)
{
    return cuda->comm ? cuda->gathers_by_copies : ranks > 1 && would_copy(cuda->base.gather_by, ranks);
}

bool cuda_ranks_reduce_by_copies(CudaDevice *cuda, int64_t ranks)
{
    return cuda->comm ? cuda->reduces_by_copies : ranks > 1 && would_copy(cuda->base.reduce_by, ranks);
}

/* ---- calls ---- */

Status cuda_ranks_alive(CudaDevice *cuda)
{
    return cuda->comm ? comm_check(cuda->comm) : OK;
}

Status cuda_ranks_check(CudaDevice *cuda, int64_t ranks)
{
    int64_t joined = comm_size(cuda->comm);
    FAIL_IF(joined != ranks, ERR_INTERNAL, "a program for %lld ranks on a GPU of %lld", (long long)ranks, (long long)joined);
    return OK;
}

int cuda_ranks_rank(CudaDevice *cuda)
{
    return comm_rank(cuda->comm);
}

Status cuda_ranks_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream)
{
    return cuda->gathers_by_copies ? cuda_peers_all_gather(cuda, send, recv, bytes, stream)
                                   : cuda_nccl_all_gather(cuda, send, recv, bytes, stream);
}

/* ---- joining and leaving ---- */

/* Called when a rank has failed; ends the queued collectives. */
static void on_end(void *context)
{
    cuda_peers_end(context);
    cuda_nccl_end(context);
}

static Status open_backends(CudaDevice *cuda, const int *gpus)
{
    if (cuda->gathers_by_copies || cuda->reduces_by_copies) TRY(cuda_peers_open(cuda, gpus));
    if (!cuda->gathers_by_copies || !cuda->reduces_by_copies) TRY(cuda_nccl_open(cuda));
    return OK;
}

Status cuda_ranks_join(CudaDevice *cuda, Comm *comm)
{
    int gpus[CUDA_MOST_PEERS];
    if (comm_size(comm) == 1) return OK;
    cuda->comm = comm;
    TRY(choose(cuda, gpus));
    TRY(cuda_gemm_share(cuda, comm)); /* shares what rank 0 read from its cache file */
    Status status = open_backends(cuda, gpus);
    comm_on_end(comm, on_end, cuda);
    TRY(status);
    if (cuda->peers) TRY(cuda_peers_try(cuda));
    return cuda->nccl ? cuda_nccl_try(cuda) : OK;
}

void cuda_ranks_close(CudaDevice *cuda)
{
    if (!cuda->comm) return;
    comm_on_end(cuda->comm, NULL, NULL);
    cuda_peers_close(cuda);
    cuda_nccl_close(cuda);
    cuda->comm = NULL;
}
