/* Ranks synchronise by flags: words of pinned memory, one for each phase of a collective and each pair of a sender and a receiver. A rank
 * signals to all others that its memory may be read (READY), and waits for the same signal from all others. Then it reads. Then it signals
 * that it has read (DONE), and waits for that from all others. The GPU itself writes the words and waits for them, on the collective's
 * stream. So it works in a replayed graph too, where all values written are constants: a signal sets a word to 1, and the receiver sets it
 * back to 0.
 *
 * So the two words of a pair of ranks serve all collectives. Say A signals B. A sets READY again only after it has seen B's DONE of the
 * previous collective, and B sent that after it had reset READY. A sets DONE again only after it has seen B's next READY, which B sent
 * after it had reset DONE. So no word is set again before it was reset, and none is reset after it was set again: before each such write
 * the GPU makes its earlier writes visible to all. This requires that collectives follow one another on every rank, as they do on one
 * stream.
 *
 * GPUs read memory of other GPUs that was allocated for that (cuda_peers_alloc), instead of using cudaDeviceEnablePeerAccess. The latter
 * would couple the GPUs in the driver: loading a kernel or allocating memory on one GPU would then wait for work on the others, and that
 * work may be waiting for this GPU.
 *
 * When a rank has failed, a thread of every other rank sets all words that its rank waits for, again and again, until its GPU has nothing
 * queued. Collectives may then read garbage, but the memory must still exist. So a rank that fails calls comm_abort before it frees
 * memory, and frees none before the GPUs of all ranks have finished (cuda_peers_settled). */
#include "device/cuda/peer.h"

#include "comm/agree.h"
#include "device/cuda/cuda.h"

#include <cuda.h> /* for types only */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { READY, DONE, PHASES };
enum { FLAG_WORDS = 16 }; /* a flag has a cache line of its own */

/* Functions of the driver. */
typedef struct DriverCalls {
    CUresult (*batch)(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags);
    CUresult (*granularity)(size_t *out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option);
    CUresult (*create)(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags);
    CUresult (*release)(CUmemGenericAllocationHandle handle);
    CUresult (*reserve)(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long long flags);
    CUresult (*map)(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags);
    CUresult (*set_access)(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count);
    CUresult (*unmap)(CUdeviceptr at, size_t bytes);
    CUresult (*unreserve)(CUdeviceptr at, size_t bytes);
} DriverCalls;

/* Memory that the GPUs of all ranks can read. */
typedef struct PeerMemory {
    struct PeerMemory *next;
    CUdeviceptr        at;
    size_t             bytes;
} PeerMemory;

/* Shared by all ranks. */
typedef struct PeerGroup {
    atomic_int  staying; /* number of ranks that haven't left */
    uint32_t   *flags;
    atomic_bool idle[CUDA_MOST_PEERS]; /* by rank: its GPU has stopped reading other GPUs' memory for good */
} PeerGroup;

struct CudaPeers {
    PeerGroup  *group; /* NULL: the ranks haven't met yet */
    DriverCalls driver;
    PeerMemory *memory;
    int         rank, size, gpus[CUDA_MOST_PEERS];
    atomic_bool queues; /* the rank's thread may be queuing launches */
    atomic_bool ended;  /* it may not queue any more */
    bool        drains;
    pthread_t   drainer;
    int         polls; /* polls so far, 1 ms each, while waiting for other GPUs to finish */
};

static uint32_t *flag(const CudaPeers *peers, int phase, int from, int to)
{
    return peers->group->flags + (size_t)((phase * peers->size + to) * peers->size + from) * FLAG_WORDS;
}

/* ---- what is needed ---- */

bool cuda_peers_reach(const int *gpus, int count)
{
    if (count > CUDA_MOST_PEERS) return false;
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++) {
            int reaches = 0; /* CUDA says that a GPU can't access itself, so a == b is skipped */
            if (a == b) continue;
            if (cudaDeviceCanAccessPeer(&reaches, gpus[a], gpus[b]) != cudaSuccess) cudaGetLastError();
            if (!reaches) return false;
        }
    return true;
}

static bool find_call(const char *name, void *out)
{
    enum cudaDriverEntryPointQueryResult found;
    void                                *function = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) cudaGetLastError();
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || !function) return false;
    memcpy(out, &function, sizeof function);
    return true;
}

static bool find_calls(DriverCalls *out)
{
    return find_call("cuStreamBatchMemOp", &out->batch) && find_call("cuMemGetAllocationGranularity", &out->granularity) &&
           find_call("cuMemCreate", &out->create) && find_call("cuMemRelease", &out->release) &&
           find_call("cuMemAddressReserve", &out->reserve) && find_call("cuMemMap", &out->map) &&
           find_call("cuMemSetAccess", &out->set_access) && find_call("cuMemUnmap", &out->unmap) &&
           find_call("cuMemAddressFree", &out->unreserve);
}

static CUmemAllocationProp memory_of(int gpu)
{
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = gpu;
    return prop;
}

static CUstreamBatchMemOpParams write_op(uint32_t *word, uint32_t value)
{
    CUstreamBatchMemOpParams op;
    memset(&op, 0, sizeof op);
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = (CUdeviceptr)(uintptr_t)word;
    op.writeValue.value = value;
    op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT; /* earlier writes are visible before this one */
    return op;
}

static CUstreamBatchMemOpParams wait_op(uint32_t *word, uint32_t value)
{
    CUstreamBatchMemOpParams op;
    memset(&op, 0, sizeof op);
    op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    op.waitValue.address = (CUdeviceptr)(uintptr_t)word;
    op.waitValue.value = value;
    op.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    return op;
}

bool cuda_peers_can(CudaDevice *cuda)
{
    uint32_t                *word = (uint32_t *)cuda->staging; /* copies that are still queued from staging run first */
    CUstreamBatchMemOpParams ops[] = {write_op(word, 1), wait_op(word, 1)};
    CUmemAllocationProp      prop = memory_of(cuda->index);
    DriverCalls              driver;
    size_t                   unit;
    return find_calls(&driver) && driver.granularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS &&
           driver.batch(cuda->stream, 2, ops, 0) == CUDA_SUCCESS && cudaStreamSynchronize(cuda->stream) == cudaSuccess;
}

/* ---- memory ---- */

static Status driver_failed(CUresult result, const char *call)
{
    FAIL(ERR_DEVICE, "CUDA: %s failed with error %d", call, (int)result);
}
#define DRIVER_TRY(call, ...) \
    do { \
        CUresult result_ = (call)(__VA_ARGS__); \
        if (result_ != CUDA_SUCCESS) return driver_failed(result_, #call); \
    } while (0)

static Status map_for_all(const CudaPeers *peers, CUmemGenericAllocationHandle handle, PeerMemory *memory)
{
    CUmemAccessDesc access[CUDA_MOST_PEERS];
    memset(access, 0, sizeof access);
    for (int r = 0; r < peers->size; r++) {
        access[r].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[r].location.id = peers->gpus[r];
        access[r].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    DRIVER_TRY(peers->driver.reserve, &memory->at, memory->bytes, 0, 0, 0);
    CUresult result = peers->driver.map(memory->at, memory->bytes, 0, handle, 0);
    if (result != CUDA_SUCCESS) {
        peers->driver.unreserve(memory->at, memory->bytes);
        memory->at = 0;
        return driver_failed(result, "cuMemMap");
    }
    DRIVER_TRY(peers->driver.set_access, memory->at, memory->bytes, access, (size_t)peers->size);
    return OK;
}

static void unmap(const CudaPeers *peers, PeerMemory *memory)
{
    if (memory->at) {
        peers->driver.unmap(memory->at, memory->bytes);
        peers->driver.unreserve(memory->at, memory->bytes);
    }
    free(memory);
}

Status cuda_peers_alloc(CudaDevice *cuda, size_t bytes, void **out)
{
    CudaPeers                   *peers = cuda->peers;
    CUmemAllocationProp          prop = memory_of(cuda->index);
    CUmemGenericAllocationHandle handle;
    size_t                       unit;
    DRIVER_TRY(peers->driver.granularity, &unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    bytes = (bytes + unit - 1) / unit * unit;
    CUresult result = peers->driver.create(&handle, bytes, &prop, 0);
    FAIL_IF(result == CUDA_ERROR_OUT_OF_MEMORY, ERR_NO_FIT, "no memory");
    if (result != CUDA_SUCCESS) return driver_failed(result, "cuMemCreate");
    PeerMemory *memory = calloc(1, sizeof *memory);
    if (!memory) fatal_out_of_memory(sizeof *memory);
    memory->bytes = bytes;
    Status status = map_for_all(peers, handle, memory);
    peers->driver.release(handle); /* the mapping keeps the memory */
    if (status != OK) {
        unmap(peers, memory);
        return status;
    }
    memory->next = peers->memory;
    peers->memory = memory;
    *out = (void *)(uintptr_t)memory->at;
    return OK;
}

bool cuda_peers_free(CudaDevice *cuda, void *memory)
{
    for (PeerMemory **at = cuda->peers ? &cuda->peers->memory : NULL; at && *at; at = &(*at)->next) {
        PeerMemory *found = *at;
        if (found->at != (CUdeviceptr)(uintptr_t)memory) continue;
        *at = found->next;
        unmap(cuda->peers, found);
        return true;
    }
    return false;
}

/* ---- meeting and leaving ---- */

static Status group_create(int size, PeerGroup **out)
{
    size_t     bytes = (size_t)(PHASES * size * size * FLAG_WORDS) * sizeof(uint32_t);
    PeerGroup *group = calloc(1, sizeof *group);
    if (!group) fatal_out_of_memory(sizeof *group);
    cudaError_t error = cudaHostAlloc((void **)&group->flags, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error != cudaSuccess) {
        free(group);
        return cuda_failed(error, "cudaHostAlloc", __FILE__, __LINE__);
    }
    memset(group->flags, 0, bytes);
    atomic_init(&group->staying, size);
    for (int r = 0; r < CUDA_MOST_PEERS; r++) atomic_init(&group->idle[r], false);
    *out = group;
    return OK;
}

static void group_free(PeerGroup *group)
{
    cudaFreeHost(group->flags);
    free(group);
}

Status cuda_peers_open(CudaDevice *cuda, const int *gpus)
{
    Comm      *comm = cuda->comm;
    CudaPeers *peers = calloc(1, sizeof *peers);
    PeerGroup *group = NULL;
    if (!peers) fatal_out_of_memory(sizeof *peers);
    *peers = (CudaPeers){.rank = comm_rank(comm), .size = comm_size(comm)};
    memcpy(peers->gpus, gpus, (size_t)peers->size * sizeof *gpus);
    bool found = find_calls(&peers->driver); /* cuda_peers_can has found them before */
    cuda->peers = peers;
    FAIL_IF(!found, ERR_INTERNAL, "the driver lacks a call that it had");
    TRY(comm_agree(comm, peers->rank == 0 ? group_create(peers->size, &group) : OK));
    Status status =
        comm_broadcast(comm, 0, &group, sizeof group); /* a broadcast between threads: all ranks get the pointer, or none does */
    if (status == OK)
        peers->group = group;
    else if (peers->rank == 0)
        group_free(group);
    return status;
}

void cuda_peers_close(CudaDevice *cuda)
{
    CudaPeers *peers = cuda->peers;
    if (!peers) return;
    if (peers->drains) pthread_join(peers->drainer, NULL);
    for (PeerMemory *memory = peers->memory, *next; memory;
         memory = next) { /* memory that was leaked because cuda_peers_settled returned false */
        next = memory->next;
        free(memory);
    }
    if (peers->group) {
        atomic_store(&peers->group->idle[peers->rank], true);
        if (atomic_fetch_sub(&peers->group->staying, 1) == 1) group_free(peers->group);
    }
    free(peers);
    cuda->peers = NULL;
}

/* ---- collectives ---- */

/* Signals all other ranks, then waits for all of them and resets their words. */
static Status meet(const CudaPeers *peers, int phase, cudaStream_t stream)
{
    CUstreamBatchMemOpParams ops[3 * CUDA_MOST_PEERS];
    int                      others = peers->size - 1;
    for (int i = 0; i < others; i++) {
        int other = (peers->rank + 1 + i) % peers->size;
        ops[i] = write_op(flag(peers, phase, peers->rank, other), 1);
        ops[others + i] = wait_op(flag(peers, phase, other, peers->rank), 1);
        ops[2 * others + i] = write_op(flag(peers, phase, other, peers->rank), 0);
    }
    CUresult result = peers->driver.batch(stream, (unsigned)(3 * others), ops, 0);
    return result == CUDA_SUCCESS ? OK : driver_failed(result, "cuStreamBatchMemOp");
}

/* A rank's buffer in a collective. Ranks exchange addresses once, when the collective is queued: a graph keeps them. */
typedef struct PeerSend {
    const void *memory;
    size_t      bytes;
} PeerSend;

Status cuda_peers_begin_reads(CudaDevice *cuda, const void *send, size_t bytes, const void *of[CUDA_MOST_PEERS], cudaStream_t stream)
{
    PeerSend own = {send, bytes}, all[CUDA_MOST_PEERS];
    TRY(comm_all_gather(cuda->comm, &own, all, sizeof own));
    for (int r = 0; r < cuda->peers->size; r++) {
        FAIL_IF(all[r].bytes != bytes, ERR_INTERNAL, "a collective of %zu bytes on rank %d, of %zu on rank %d", bytes, cuda->peers->rank,
                all[r].bytes, r);
        of[r] = all[r].memory;
    }
    return meet(cuda->peers, READY, stream);
}

Status cuda_peers_end_reads(CudaDevice *cuda, cudaStream_t stream)
{
    return meet(cuda->peers, DONE, stream);
}

/* Copies from one rank after another. Each rank starts with the next one, so that a link carries one copy at a time. */
Status cuda_peers_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream)
{
    const void *of[CUDA_MOST_PEERS];
    int         rank = cuda->peers->rank, size = cuda->peers->size;
    char       *to = recv;
    if (to + (size_t)rank * bytes != send) CUDA_TRY(cudaMemcpyAsync(to + (size_t)rank * bytes, send, bytes, cudaMemcpyDefault, stream));
    TRY(cuda_peers_begin_reads(cuda, send, bytes, of, stream));
    for (int i = 1; i < size; i++) {
        int other = (rank + i) % size;
        CUDA_TRY(cudaMemcpyAsync(to + (size_t)other * bytes, of[other], bytes, cudaMemcpyDefault, stream));
    }
    return cuda_peers_end_reads(cuda, stream);
}

static Status try_out(CudaDevice *cuda, char *memory)
{
    enum { EACH = 4096 };
    int   rank = cuda->peers->rank, size = cuda->peers->size;
    char *host = cuda->staging;
    CUDA_TRY(cudaMemsetAsync(memory + (size_t)size * EACH, rank + 1, EACH, cuda->stream));
    TRY(cuda_peers_all_gather(cuda, memory + (size_t)size * EACH, memory, EACH, cuda->stream));
    CUDA_TRY(cudaMemcpyAsync(host, memory, (size_t)size * EACH, cudaMemcpyDefault, cuda->stream));
    CUDA_TRY(cudaStreamSynchronize(cuda->stream));
    TRY(comm_check(cuda->comm));
    for (int i = 0; i < size * EACH; i++)
        FAIL_IF(host[i] != i / EACH + 1, ERR_DEVICE,
                "GPU %d reads wrong bytes of rank %d's GPU: set memcpy_all_gather, memcpy_send_recv and use_all_to_all_reduce to false",
                cuda->index, i / EACH);
    return OK;
}

Status cuda_peers_try(CudaDevice *cuda)
{
    void *memory = NULL;
    TRY(comm_agree(cuda->comm, cuda_peers_alloc(cuda, ((size_t)cuda->peers->size + 1) * 4096, &memory)));
    Status status = cuda_peers_enter(cuda);
    if (status == OK) status = try_out(cuda, memory);
    cuda_peers_leave(cuda);
    status = comm_agree(cuda->comm, status);
    if (cuda_peers_settled(cuda)) cuda_peers_free(cuda, memory);
    return status;
}

/* ---- failing together ---- */

/* This sets `queues`, then reads `ended`. The other thread sets `ended`, then reads `queues` in drain. So at least one of them sees the
 * other's flag. */
Status cuda_peers_enter(CudaDevice *cuda)
{
    CudaPeers *peers = cuda->peers;
    if (!peers) return OK;
    atomic_store(&peers->queues, true);
    if (!atomic_load(&peers->ended)) return OK;
    atomic_store(&peers->queues, false);
    TRY(comm_check(cuda->comm));
    FAIL(ERR_RANK, "another rank has failed");
}

void cuda_peers_leave(CudaDevice *cuda)
{
    if (cuda->peers) atomic_store(&cuda->peers->queues, false);
}

static void *drain(void *argument)
{
    CudaDevice *cuda = argument;
    CudaPeers  *peers = cuda->peers;
    cudaSetDevice(cuda->index);
    do {
        for (int phase = 0; phase < PHASES; phase++)
            for (int r = 0; r < peers->size; r++) __atomic_store_n(flag(peers, phase, r, peers->rank), 1, __ATOMIC_SEQ_CST);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    } while (atomic_load(&peers->queues) || cudaStreamQuery(cuda->stream) == cudaErrorNotReady);
    atomic_store(&peers->group->idle[peers->rank], true);
    return NULL;
}

void cuda_peers_end(CudaDevice *cuda)
{
    CudaPeers *peers = cuda->peers;
    if (!peers || !peers->group) return;
    atomic_store(&peers->ended, true);
    peers->drains = pthread_create(&peers->drainer, NULL, drain, cuda) == 0;
    if (!peers->drains) drain(cuda);
}

bool cuda_peers_settled(CudaDevice *cuda)
{
    enum { MOST_POLLS = 5000 }; /* polls of 1 ms, over all calls */
    CudaPeers *peers = cuda->peers;
    if (!peers || !peers->group || comm_cause(cuda->comm) == OK) return true;
    for (int r = 0;; peers->polls++) {
        while (r < peers->size && atomic_load(&peers->group->idle[r])) r++;
        if (r == peers->size || peers->polls >= MOST_POLLS) return r == peers->size;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
