/* NCCL: this rank's communicator. It is created as non-blocking, so that no call blocks a thread: a thread that waits also checks whether
 * another rank has failed. If one has, the communicator is aborted, which ends the collectives that are running on the GPU.
 *
 * Environment variables are set for NCCL (device_prepare_ranks), unless the user has set them. They turn off NVLink multicast, which shared
 * machines may not offer. They make sums run along rings only, so that their order depends on the machine and not on NCCL's guess of the
 * fastest way. And on a single host they choose the loopback interface, as NCCL's messages to find its ranks are neither encrypted nor
 * authenticated. */
#include "device/cuda/nccl.h"

#include "comm/comm.h"
#include "device/cuda/cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- what NCCL 2.17 and later offer ---- */

typedef struct NcclHandle NcclHandle; /* a communicator */

enum { RESULT_SUCCESS = 0, RESULT_IN_PROGRESS = 7 };
enum { TYPE_BYTE = 0, TYPE_F16 = 6, TYPE_F32 = 7, TYPE_BF16 = 9 };
enum { OP_IS_SUM = 0 };
enum { LEAST_VERSION = 21700, UNDEFINED = INT_MIN };
#define CONFIG_MAGIC 0xcafebeefu

typedef struct NcclId {
    char bytes[128];
} NcclId;

/* The first fields of ncclConfig_t, as of version 2.17. */
typedef struct NcclConfig {
    size_t      size;
    unsigned    magic, version;
    int         blocking, cga_cluster, least_ctas, most_ctas;
    const char *network;
} NcclConfig;

typedef struct NcclCalls {
    int (*version)(int *out);
    int (*unique_id)(NcclId *out);
    int (*init)(NcclHandle **out, int ranks, NcclId id, int rank, NcclConfig *config);
    int (*finalize)(NcclHandle *handle);
    int (*destroy)(NcclHandle *handle);
    int (*abort)(NcclHandle *handle);
    int (*async_error)(NcclHandle *handle, int *out);
    const char *(*error_text)(int result);
    const char *(*last_error)(NcclHandle *handle);
    int (*all_gather)(const void *send, void *recv, size_t count, int type, NcclHandle *handle, cudaStream_t stream);
    int (*reduce_scatter)(const void *send, void *recv, size_t count, int type, int op, NcclHandle *handle, cudaStream_t stream);
} NcclCalls;

struct CudaNccl {
    NcclCalls       calls;
    char            path[512];
    Comm           *comm;
    pthread_mutex_t lock;   /* held to read `handle`, and during every call of NCCL that uses it */
    NcclHandle     *handle; /* NULL: not created yet, or aborted */
    NcclHandle     *aborted;
    pthread_t       aborter;
};

/* ---- the library ---- */

static Status open_library(CudaNccl *nccl, int *out_version)
{
    const struct {
        const char *name;
        void       *to;
    } functions[] = {
        {"ncclGetVersion", &nccl->calls.version},
        {"ncclGetUniqueId", &nccl->calls.unique_id},
        {"ncclCommInitRankConfig", &nccl->calls.init},
        {"ncclCommFinalize", &nccl->calls.finalize},
        {"ncclCommDestroy", &nccl->calls.destroy},
        {"ncclCommAbort", &nccl->calls.abort},
        {"ncclCommGetAsyncError", &nccl->calls.async_error},
        {"ncclGetErrorString", &nccl->calls.error_text},
        {"ncclGetLastError", &nccl->calls.last_error},
        {"ncclAllGather", &nccl->calls.all_gather},
        {"ncclReduceScatter", &nccl->calls.reduce_scatter},
    };
    void *handle = cuda_library_open("libnccl.so.2", "nvidia_nccl", nccl->path, sizeof nccl->path);
    FAIL_IF(!handle, ERR_UNSUPPORTED,
            "several GPUs need NCCL: libnccl.so.2 wasn't found in the loader's paths, the CUDA toolkit, or pip's nvidia-nccl: install one "
            "of them, or name its folder in SUROGATE_CUDA_LIBS");
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *symbol = dlsym(handle, functions[i].name);
        FAIL_IF(!symbol, ERR_UNSUPPORTED, "%s lacks %s: NCCL 2.17 or later is needed", nccl->path, functions[i].name);
        memcpy(functions[i].to, &symbol, sizeof symbol);
    }
    FAIL_IF(nccl->calls.version(out_version) != RESULT_SUCCESS || *out_version < LEAST_VERSION, ERR_UNSUPPORTED,
            "%s is NCCL of version code %d: 2.17 or later is needed", nccl->path, *out_version);
    return OK;
}

/* ---- calls ---- */

static Status failed(const CudaNccl *nccl, int result, const char *what)
{
    const char *detail = nccl->calls.last_error(NULL);
    FAIL(ERR_DEVICE, "NCCL (%s): %s: %s%s%s; NCCL_DEBUG=WARN says more", nccl->path, what, nccl->calls.error_text(result),
         detail && detail[0] ? ": " : "", detail ? detail : "");
}

/* Waits until the communicator's work has advanced so far that the next call may be made. Fails if another rank has failed. */
static Status settle(CudaNccl *nccl, const char *what)
{
    for (int turn = 0;; turn++) {
        int result = RESULT_SUCCESS, state = RESULT_SUCCESS;
        pthread_mutex_lock(&nccl->lock);
        bool is_there = nccl->handle != NULL;
        if (is_there) result = nccl->calls.async_error(nccl->handle, &state);
        pthread_mutex_unlock(&nccl->lock);
        TRY(comm_check(nccl->comm));
        FAIL_IF(!is_there, ERR_DEVICE, "NCCL: %s after the communicator was aborted", what);
        if (result == RESULT_SUCCESS) result = state;
        if (result == RESULT_SUCCESS) return OK;
        if (result != RESULT_IN_PROGRESS) return failed(nccl, result, what);
        if (turn > 1000) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

/* Handles the result of a call, after the lock was released; waits if the call is still in progress. */
static Status finish(CudaNccl *nccl, int result, const char *what)
{
    if (result == RESULT_SUCCESS) return OK;
    return result == RESULT_IN_PROGRESS ? settle(nccl, what) : failed(nccl, result, what);
}

/* Takes the lock, if the communicator can be used; on failure the lock is not held. */
static Status lock_handle(CudaNccl *nccl)
{
    pthread_mutex_lock(&nccl->lock);
    if (nccl->handle) return OK;
    pthread_mutex_unlock(&nccl->lock);
    TRY(comm_check(nccl->comm));
    FAIL(ERR_DEVICE, "NCCL: the communicator was aborted");
}

Status cuda_nccl_all_gather(CudaDevice *cuda, const void *send, void *recv, size_t bytes, cudaStream_t stream)
{
    CudaNccl *nccl = cuda->nccl;
    TRY(lock_handle(nccl));
    int result = nccl->calls.all_gather(send, recv, bytes, TYPE_BYTE, nccl->handle, stream);
    pthread_mutex_unlock(&nccl->lock);
    return finish(nccl, result, "all_gather");
}

Status cuda_nccl_reduce_scatter(CudaDevice *cuda, const void *send, void *recv, size_t count, DType dtype, cudaStream_t stream)
{
    CudaNccl *nccl = cuda->nccl;
    int       type = dtype == DT_F32 ? TYPE_F32 : dtype == DT_BF16 ? TYPE_BF16 : TYPE_F16;
    TRY(lock_handle(nccl));
    int result = nccl->calls.reduce_scatter(send, recv, count, type, OP_IS_SUM, nccl->handle, stream);
    pthread_mutex_unlock(&nccl->lock);
    return finish(nccl, result, "reduce_scatter");
}

/* ---- joining and leaving ---- */

static void *abort_handle(void *argument)
{
    CudaNccl *nccl = argument;
    nccl->calls.abort(nccl->aborted);
    return NULL;
}

/* Aborting may wait for graphs that hold collectives to be destroyed, so a separate thread does it. */
void cuda_nccl_end(CudaDevice *cuda)
{
    CudaNccl *nccl = cuda->nccl;
    if (!nccl) return;
    pthread_mutex_lock(&nccl->lock);
    if (nccl->handle && pthread_create(&nccl->aborter, NULL, abort_handle, nccl) == 0) {
        nccl->aborted = nccl->handle;
        nccl->handle = NULL;
    }
    pthread_mutex_unlock(&nccl->lock);
}

static Status same_version(CudaNccl *nccl, int version)
{
    int versions[COMM_MOST_RANKS];
    TRY(comm_all_gather(nccl->comm, &version, versions, sizeof version));
    for (int r = 1; r < nccl->comm->size; r++)
        FAIL_IF(versions[r] != versions[0], ERR_INVALID, "rank %d has NCCL of version code %d, rank 0 of %d (%s): all need the same", r,
                versions[r], versions[0], nccl->path);
    return OK;
}

static Status make_handle(CudaNccl *nccl)
{
    NcclId     id = {{0}};
    int        result = RESULT_SUCCESS;
    NcclConfig config = {.size = sizeof config, .magic = CONFIG_MAGIC, .version = LEAST_VERSION};
    config.cga_cluster = config.least_ctas = config.most_ctas = UNDEFINED;
    if (nccl->comm->rank == 0) result = nccl->calls.unique_id(&id);
    if (result != RESULT_SUCCESS) return failed(nccl, result, "ncclGetUniqueId");
    TRY(comm_broadcast(nccl->comm, 0, &id, sizeof id));
    pthread_mutex_lock(&nccl->lock);
    result = nccl->calls.init(&nccl->handle, nccl->comm->size, id, nccl->comm->rank, &config);
    pthread_mutex_unlock(&nccl->lock);
    return finish(nccl, result, "making the communicator");
}

/* Runs a first collective of each kind with a known result. It makes NCCL connect, which shouldn't happen while a graph is captured, and
 * it finds broken links before training starts. */
static Status try_out(CudaDevice *cuda, float *memory)
{
    enum { EACH = 1024 };
    int    size = cuda->nccl->comm->size, rank = cuda->nccl->comm->rank;
    float *whole = memory, *share = memory + (size_t)size * EACH, host[EACH];
    for (int i = 0; i < EACH; i++) host[i] = (float)(rank + i % 7);
    CUDA_TRY(cudaMemcpyAsync(share, host, sizeof host, cudaMemcpyDefault, cuda->stream));
    TRY(cuda_nccl_all_gather(cuda, share, whole, sizeof host, cuda->stream));
    TRY(cuda_nccl_reduce_scatter(cuda, whole, share, EACH, DT_F32, cuda->stream));
    CUDA_TRY(cudaMemcpyAsync(host, share, sizeof host, cudaMemcpyDefault, cuda->stream));
    for (cudaError_t error; (error = cudaStreamQuery(cuda->stream)) != cudaSuccess;) {
        if (error != cudaErrorNotReady) return cuda_failed(error, "a first collective", __FILE__, __LINE__);
        TRY(comm_check(cuda->nccl->comm));
    }
    for (int i = 0; i < EACH; i++) {
        float want = (float)(size * (rank + i % 7));
        FAIL_IF(host[i] != want, ERR_DEVICE, "NCCL (%s): a first sum over %d GPUs is wrong: %g, expected %g; NCCL_P2P_DISABLE=1 may help",
                cuda->nccl->path, size, (double)host[i], (double)want);
    }
    return comm_barrier(cuda->nccl->comm);
}

Status cuda_nccl_try(CudaDevice *cuda)
{
    float *memory = NULL;
    CUDA_TRY(cudaMalloc((void **)&memory, ((size_t)cuda->comm->size + 1) * 1024 * sizeof(float)));
    Status status = try_out(cuda, memory);
    cudaFree(memory);
    return status;
}

Status cuda_nccl_open(CudaDevice *cuda)
{
    int       version = 0;
    CudaNccl *nccl = calloc(1, sizeof *nccl);
    if (!nccl) fatal_out_of_memory(sizeof *nccl);
    nccl->comm = cuda->comm;
    pthread_mutex_init(&nccl->lock, NULL);
    cuda->nccl = nccl;
    TRY(open_library(nccl, &version));
    TRY(same_version(nccl, version));
    return make_handle(nccl);
}

/* All ranks leave together, unless one has failed. A rank that doesn't leave is waited for 10 s. */
static void leave(CudaNccl *nccl)
{
    enum { MOST_POLLS = 100000 }; /* of 100 us */
    int state = RESULT_IN_PROGRESS, result = comm_check(nccl->comm) == OK ? nccl->calls.finalize(nccl->handle) : -1;
    for (int i = 0; i < MOST_POLLS && (result == RESULT_SUCCESS || result == RESULT_IN_PROGRESS); i++) {
        if (nccl->calls.async_error(nccl->handle, &state) != RESULT_SUCCESS || state != RESULT_IN_PROGRESS) break;
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    if (state == RESULT_SUCCESS)
        nccl->calls.destroy(nccl->handle);
    else
        nccl->calls.abort(nccl->handle);
}

void cuda_nccl_close(CudaDevice *cuda)
{
    CudaNccl *nccl = cuda->nccl;
    if (!nccl) return;
    if (nccl->aborted) pthread_join(nccl->aborter, NULL);
    if (nccl->handle) leave(nccl);
    pthread_mutex_destroy(&nccl->lock);
    free(nccl);
    cuda->nccl = NULL;
}
