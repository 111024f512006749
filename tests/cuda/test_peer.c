/* How ranks meet in collectives by copies, without a GPU: runs device/cuda/peer.c and ranks.c over streams that are threads, with host
 * memory. Each rank has its own stream, which lags at random. Launches that were queued once may be replayed like a graph. */
#include "device/cuda/cuda.h"
#include "device/cuda/nccl.h"
#include "device/cuda/peer.h"
#include "device/cuda/ranks.h"

#include "base/philox.h"
#include "comm/comm.h"
#include "test.h"

#include <cuda.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 8, MOST_OPS = 256, QUEUED = 1 << 14 };

/* ---- streams that are threads ---- */

typedef enum Kind { OP_COPY, OP_FILL, OP_MEM, OP_LEAVE } Kind;

typedef struct StreamOp {
    Kind                     kind;
    void                    *to;
    const void              *from;
    int                      value;
    size_t                   bytes;
    CUstreamBatchMemOpParams mem;
} StreamOp;

struct CUstream_st {
    pthread_t   thread;
    StreamOp    ops[QUEUED]; /* a ring buffer */
    atomic_long queued, done;
    StreamOp    kept[MOST_OPS]; /* the ops of a recorded graph */
    int         num_kept;
    bool        keeps;
    uint32_t    lag;
};

static void lag(cudaStream_t stream)
{
    uint32_t draw = philox4x32(stream->lag++, 0, 0, 0, 3).v[0];
    if (draw % 8 == 0) nanosleep(&(struct timespec){.tv_nsec = draw % 65536}, NULL);
}

static void run_mem(const CUstreamBatchMemOpParams *op)
{
    if (op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) {
        __atomic_store_n((uint32_t *)(uintptr_t)op->writeValue.address, op->writeValue.value, __ATOMIC_SEQ_CST);
        return;
    }
    while (__atomic_load_n((uint32_t *)(uintptr_t)op->waitValue.address, __ATOMIC_SEQ_CST) != op->waitValue.value) sched_yield();
}

static void *stream_main(void *argument)
{
    cudaStream_t stream = argument;
    for (;;) {
        long at = atomic_load(&stream->done);
        if (at == atomic_load(&stream->queued)) {
            sched_yield();
            continue;
        }
        const StreamOp *op = &stream->ops[at % QUEUED];
        lag(stream);
        if (op->kind == OP_LEAVE) return NULL;
        if (op->kind == OP_COPY) memcpy(op->to, op->from, op->bytes);
        if (op->kind == OP_FILL) memset(op->to, op->value, op->bytes);
        if (op->kind == OP_MEM) run_mem(&op->mem);
        atomic_store(&stream->done, at + 1);
    }
}

static void queue(cudaStream_t stream, const StreamOp *op)
{
    long at = atomic_load(&stream->queued);
    if (stream->keeps) {
        stream->kept[stream->num_kept++] = *op;
        return;
    }
    while (at - atomic_load(&stream->done) >= QUEUED) sched_yield();
    stream->ops[at % QUEUED] = *op;
    atomic_store(&stream->queued, at + 1);
}

static void replay(cudaStream_t stream)
{
    for (int i = 0; i < stream->num_kept; i++) queue(stream, &stream->kept[i]);
}

static cudaStream_t stream_create(uint32_t seed)
{
    cudaStream_t stream = calloc(1, sizeof *stream);
    stream->lag = seed << 20;
    EXPECT_INT(pthread_create(&stream->thread, NULL, stream_main, stream), 0);
    return stream;
}

static void stream_destroy(cudaStream_t stream)
{
    queue(stream, &(StreamOp){.kind = OP_LEAVE});
    pthread_join(stream->thread, NULL);
    free(stream);
}

/* ---- what peer.c and ranks.c call ---- */

static atomic_bool unreachable; /* true: no GPU can read another's memory */
static atomic_int  nccl_opened;

static CUresult batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags)
{
    (void)flags;
    for (unsigned i = 0; i < count; i++) queue(stream, &(StreamOp){.kind = OP_MEM, .mem = ops[i]});
    return CUDA_SUCCESS;
}

/* Stands for memory that all GPUs read: reserving its addresses already makes it usable. */
static CUresult granularity(size_t *out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
    (void)prop, (void)option;
    *out = 4096;
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)bytes, (void)prop, (void)flags;
    *out = 1;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    EXPECT_INT(handle, 1);
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long long flags)
{
    (void)alignment, (void)at, (void)flags;
    *out = (CUdeviceptr)(uintptr_t)malloc(bytes);
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)at, (void)bytes, (void)offset, (void)handle, (void)flags;
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    (void)at, (void)bytes;
    for (size_t r = 0; r < count; r++) EXPECT_INT(access[r].location.id, r); /* accessible to all ranks' GPUs */
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr at, size_t bytes)
{
    (void)at, (void)bytes;
    return CUDA_SUCCESS;
}

static CUresult unreserve(CUdeviceptr at, size_t bytes)
{
    (void)bytes;
    free((void *)(uintptr_t)at);
    return CUDA_SUCCESS;
}

#define CALL(symbol, function) \
    { \
        symbol, (void (*)(void))(function) \
    }
static const struct {
    const char *symbol;
    void (*function)(void);
} driver_calls[] = {CALL("cuStreamBatchMemOp", batch),    CALL("cuMemGetAllocationGranularity", granularity),
                    CALL("cuMemCreate", create),          CALL("cuMemRelease", release),
                    CALL("cuMemAddressReserve", reserve), CALL("cuMemMap", map),
                    CALL("cuMemSetAccess", set_access),   CALL("cuMemUnmap", unmap),
                    CALL("cuMemAddressFree", unreserve)};

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    (void)version, (void)flags;
    *result = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof driver_calls / sizeof driver_calls[0]; i++) {
        if (strcmp(symbol, driver_calls[i].symbol) != 0) continue;
        memcpy(function, &driver_calls[i].function, sizeof *function);
        *result = cudaDriverEntryPointSuccess;
    }
    EXPECT_INT(*result, cudaDriverEntryPointSuccess);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    queue(stream, &(StreamOp){.kind = OP_COPY, .to = to, .from = from, .bytes = bytes});
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    queue(stream, &(StreamOp){.kind = OP_FILL, .to = to, .value = value, .bytes = bytes});
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return atomic_load(&stream->done) == atomic_load(&stream->queued) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    while (cudaStreamQuery(stream) == cudaErrorNotReady) sched_yield();
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int gpu, int peer)
{
    *can = gpu != peer && !atomic_load(&unreachable);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    *out = malloc(bytes);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int gpu)
{
    (void)gpu;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = MOST;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

Status cuda_failed(cudaError_t error, const char *what, const char *file, int line)
{
    FAIL(ERR_DEVICE, "%s:%d: %s: %d", file, line, what, (int)error);
}

Status cuda_gemm_share(CudaDevice *device, Comm *comm);
Status cuda_gemm_share(CudaDevice *device, Comm *comm)
{
    (void)device;
    return comm_barrier(comm);
}

Status cuda_nccl_open(CudaDevice *cuda)
{
    (void)cuda;
    atomic_fetch_add(&nccl_opened, 1);
    return OK;
}

Status cuda_nccl_try(CudaDevice *cuda)
{
    (void)cuda;
    return OK;
}

void cuda_nccl_end(CudaDevice *cuda)
{
    (void)cuda;
}

void cuda_nccl_close(CudaDevice *cuda)
{
    (void)cuda;
}

Status cuda_nccl_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream)
{
    (void)cuda, (void)send, (void)recv, (void)bytes, (void)stream;
    FAIL(ERR_INTERNAL, "NCCL was called");
}

/* ---- ranks ---- */

typedef struct Team Team;
typedef struct Member {
    Team      *team;
    CudaDevice cuda;
    Comm      *comm;
    int        rank;
    Status     status;
    char       message[512];
    pthread_t  thread;
} Member;

struct Team {
    int size, culprit, moment; /* culprit -1: none fails */
    Status (*run)(Member *member);
    CrossBy gather_by, reduce_by;
    Member  members[MOST];
};

static void *member_main(void *argument)
{
    Member *m = argument;
    m->cuda = (CudaDevice){.index = m->rank, .stream = stream_create((uint32_t)m->rank), .staging = malloc(CUDA_STAGING_BYTES)};
    m->cuda.base.gather_by = m->team->gather_by;
    m->cuda.base.reduce_by = m->team->reduce_by;
    m->status = cuda_ranks_join(&m->cuda, m->comm);
    if (m->status == OK) m->status = m->team->run(m);
    if (m->status != OK) {
        snprintf(m->message, sizeof m->message, "%s", status_message());
        comm_abort(m->comm, m->status, m->message);
    }
    cudaStreamSynchronize(m->cuda.stream);
    cuda_ranks_close(&m->cuda);
    stream_destroy(m->cuda.stream);
    free(m->cuda.staging);
    comm_destroy(m->comm);
    return NULL;
}

static void run_team(Team *team)
{
    Comm *comms[MOST];
    alarm(120); /* ends a rank that waits for ever */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_ALGO", "Ring", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    EXPECT_OK(comm_threads_create(team->size, NULL, comms));
    for (int r = 0; r < team->size; r++) {
        team->members[r] = (Member){.team = team, .comm = comms[r], .rank = r};
        EXPECT_INT(pthread_create(&team->members[r].thread, NULL, member_main, &team->members[r]), 0);
    }
    for (int r = 0; r < team->size; r++) pthread_join(team->members[r].thread, NULL);
    alarm(0);
}

static void expect_all_well(Team *team)
{
    run_team(team);
    for (int r = 0; r < team->size; r++)
        if (team->members[r].status != OK) test_fail(__FILE__, __LINE__, "rank %d: %s", r, team->members[r].message);
}

/* ---- right ---- */

enum { BYTES = 1000, TURNS = 300 };

/* Memory of a rank. own: the part it sends; all: the gathered parts; large: other ranks read parts of it; parts: what it reads of all
 * ranks' `large`; kept: `all` and `parts` of every turn. */
typedef struct Memory {
    unsigned char own[BYTES], all[MOST * BYTES], large[MOST * BYTES], parts[MOST * BYTES], *kept;
} Memory;

/* Queues a gather, and reads of this rank's part of every rank's `large`. Right after, `own` and `large` are overwritten. */
static Status queue_both(Member *m, Memory *memory)
{
    CudaDevice *cuda = &m->cuda;
    const void *of[CUDA_MOST_PEERS];
    size_t      bytes = (size_t)m->team->size * BYTES;
    TRY(cuda_ranks_all_gather(cuda, memory->own, memory->all, BYTES, cuda->stream));
    CUDA_TRY(cudaMemsetAsync(memory->own, 255, BYTES, cuda->stream));
    TRY(cuda_peers_begin_reads(cuda, memory->large, bytes, of, cuda->stream));
    for (int r = 0; r < m->team->size; r++)
        CUDA_TRY(cudaMemcpyAsync(memory->parts + r * BYTES, (const char *)of[r] + m->rank * BYTES, BYTES, cudaMemcpyDefault, cuda->stream));
    TRY(cuda_peers_end_reads(cuda, cuda->stream));
    CUDA_TRY(cudaMemsetAsync(memory->large, 255, bytes, cuda->stream));
    return OK;
}

static int value_of(int rank, int turn)
{
    return (turn * 17 + rank * 5) % 251;
}

static Status queue_turn(Member *m, Memory *memory, int turn, bool replays)
{
    size_t         bytes = (size_t)m->team->size * BYTES;
    cudaStream_t   stream = m->cuda.stream;
    unsigned char *kept = memory->kept + (size_t)turn * 2 * bytes;
    CUDA_TRY(cudaMemsetAsync(memory->own, value_of(m->rank, turn), BYTES, stream));
    CUDA_TRY(cudaMemsetAsync(memory->large, value_of(m->rank, turn + 1), bytes, stream));
    TRY(cuda_peers_enter(&m->cuda));
    Status status = OK;
    if (replays)
        replay(stream);
    else
        status = queue_both(m, memory);
    cuda_peers_leave(&m->cuda);
    TRY(status);
    CUDA_TRY(cudaMemcpyAsync(kept, memory->all, bytes, cudaMemcpyDefault, stream));
    CUDA_TRY(cudaMemcpyAsync(kept + bytes, memory->parts, bytes, cudaMemcpyDefault, stream));
    return OK;
}

/* Queues some turns anew and replays others, in an order that is the same on all ranks. If a rank is to fail, all turns are replayed,
 * slowly, so that the other ranks queue their turns meanwhile. */
static Status queue_turns(Member *m, Memory *memory)
{
    m->cuda.stream->keeps = true;
    Status status = queue_both(m, memory);
    m->cuda.stream->keeps = false;
    TRY(status);
    for (int turn = 0; turn < TURNS; turn++) {
        bool any_fails = m->team->culprit >= 0, fails = m->rank == m->team->culprit && turn == m->team->moment;
        FAIL_IF(fails, ERR_IO, "broken on purpose");
        if (any_fails) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        TRY(queue_turn(m, memory, turn, any_fails || turn % 3 != 0));
    }
    CUDA_TRY(cudaStreamSynchronize(m->cuda.stream));
    return cuda_ranks_alive(&m->cuda);
}

static void check_turns(const Member *m, const Memory *memory)
{
    size_t bytes = (size_t)m->team->size * BYTES;
    for (int turn = 0; turn < TURNS; turn++)
        for (size_t i = 0; i < bytes; i++) {
            const unsigned char *kept = memory->kept + (size_t)turn * 2 * bytes;
            int                  other = (int)(i / BYTES);
            EXPECT_INT(kept[i], value_of(other, turn));
            EXPECT_INT(kept[bytes + i], value_of(other, turn + 1));
        }
}

static Status work(Member *m)
{
    Memory *memory = calloc(1, sizeof *memory);
    memory->kept = calloc(TURNS * 2 * MOST, BYTES);
    Status status = queue_turns(m, memory);
    if (status == OK) check_turns(m, memory);
    if (status != OK) {
        snprintf(m->message, sizeof m->message, "%s", status_message());
        comm_abort(m->comm, status, m->message);
    }
    cudaStreamSynchronize(m->cuda.stream);
    bool settled = cuda_peers_settled(&m->cuda);
    EXPECT(settled);
    if (settled) {
        memset(memory, 0xee, sizeof *memory - sizeof memory->kept);
        free(memory->kept);
        free(memory);
    }
    return status;
}

static void every_rank_reads_what_the_others_had(void)
{
    static const int sizes[] = {2, 3, 4, 8};
    for (int i = 0; i < 4; i++) {
        Team team = {.size = sizes[i], .culprit = -1, .run = work};
        expect_all_well(&team);
    }
    EXPECT_INT(atomic_load(&nccl_opened), 0);
}

/* ---- failing together ---- */

static void one_failure_ends_all(void)
{
    for (int turn = 0; turn < 60; turn++) {
        Team team = {.size = 2 + turn % 3, .culprit = turn % 2, .moment = turn * 7 % 40, .run = work};
        run_team(&team);
        for (int r = 0; r < team.size; r++) {
            const Member *m = &team.members[r];
            EXPECT_INT(m->status, r == team.culprit ? ERR_IO : ERR_RANK);
            EXPECT_CONTAINS(m->message, "broken on purpose");
        }
    }
}

/* ---- which backend ---- */

static Status nothing(Member *m)
{
    EXPECT_INT(m->cuda.gathers_by_copies, m->team->gather_by != CROSS_NCCL && !atomic_load(&unreachable));
    EXPECT_INT(m->cuda.reduces_by_copies, m->team->reduce_by != CROSS_NCCL && !atomic_load(&unreachable));
    EXPECT(cuda_ranks_gather_by_copies(&m->cuda, m->team->size) == m->cuda.gathers_by_copies);
    return cuda_ranks_check(&m->cuda, m->team->size);
}

static void expect_opened(CrossBy gather_by, CrossBy reduce_by, bool opens_nccl)
{
    Team team = {.size = 3, .run = nothing, .gather_by = gather_by, .reduce_by = reduce_by};
    atomic_store(&nccl_opened, 0);
    expect_all_well(&team);
    EXPECT_INT(atomic_load(&nccl_opened), opens_nccl ? 3 : 0);
}

static void nccl_is_opened_where_it_is_wanted(void)
{
    expect_opened(CROSS_AUTO, CROSS_AUTO, false);
    expect_opened(CROSS_COPIES, CROSS_COPIES, false);
    expect_opened(CROSS_AUTO, CROSS_NCCL, true);
    expect_opened(CROSS_NCCL, CROSS_COPIES, true);
    atomic_store(&unreachable, true);
    expect_opened(CROSS_AUTO, CROSS_NCCL, true);
    expect_opened(CROSS_AUTO, CROSS_AUTO, true);
    atomic_store(&unreachable, false);
}

static void copies_that_cannot_be_are_refused(void)
{
    Team team = {.size = 2, .run = nothing, .gather_by = CROSS_COPIES};
    atomic_store(&unreachable, true);
    run_team(&team);
    atomic_store(&unreachable, false);
    for (int r = 0; r < 2; r++) {
        EXPECT_INT(team.members[r].status, ERR_UNSUPPORTED);
        EXPECT_CONTAINS(team.members[r].message, "memcpy_all_gather: true: not each of these GPUs reaches");
    }
}

static void a_plan_says_what_a_run_would_do(void)
{
    CudaDevice unjoined = {.base = {.gather_by = CROSS_AUTO, .reduce_by = CROSS_NCCL}};
    EXPECT(cuda_ranks_gather_by_copies(&unjoined, 2));
    EXPECT(!cuda_ranks_gather_by_copies(&unjoined, 1));
    EXPECT(!cuda_ranks_gather_by_copies(&unjoined, MOST + 1)); /* more GPUs than exist here */
    EXPECT(!cuda_ranks_reduce_by_copies(&unjoined, 2));
}

TEST_MAIN(TEST(every_rank_reads_what_the_others_had), TEST(one_failure_ends_all), TEST(nccl_is_opened_where_it_is_wanted),
          TEST(copies_that_cannot_be_are_refused), TEST(a_plan_says_what_a_run_would_do))
