/* DeviceApi of one GPU. Regions are allocated by cudaMalloc or pinned on the host; copies go through pinned staging memory on the
 * compute stream; programs are CUDA graphs (launch.c). */
#include "device/cuda/cuda.h"

#include "comm/comm.h"
#include "device/cuda/gemm.h"
#include "device/cuda/kernel.h"
#include "device/cuda/peer.h"
#include "device/cuda/plugin.h"
#include "device/cuda/ranks.h"
#include "device/cuda/sdpa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART_BYTES = CUDA_STAGING_BYTES / CUDA_STAGING_PARTS, PINNED_AT_LEAST = 256 << 10 };

static CudaDevice *cuda_of(Device *device)
{
    return (CudaDevice *)device;
}

static Status sticky(const CudaDevice *cuda)
{
    if (cuda->error == OK) return OK;
    FAIL(cuda->error, "%s", cuda->message);
}

/* Begins every call: selects this GPU, as any thread may call and may have used another GPU before. */
static Status enter(const CudaDevice *cuda)
{
    TRY(sticky(cuda));
    CUDA_TRY(cudaSetDevice(cuda->index));
    return OK;
}

/* Makes a failure sticky: all later calls return it. A lost GPU or an ECC error is noticed here too. Out of memory isn't sticky. */
static Status keep(CudaDevice *cuda, Status status, const char *where)
{
    if (status == OK || status == ERR_NO_FIT) return status;
    cuda->error = status;
    snprintf(cuda->message, sizeof cuda->message, "%s%s%.800s", where, where[0] ? ": " : "", status_message());
    return sticky(cuda);
}

static Status facts(Device *device, DeviceFacts *out)
{
    static const struct {
        const char *name;
        double      bf16_tflops, fp8_tflops, fp4_tflops, fp32_tflops, gbytes_per_second, link_gbytes_per_second, peer_gbytes_per_second;
    } gpus[] = {
#define GPU(id, name, sm, memory, bf16, fp8, fp4, fp32, bandwidth, link, peers) {name, bf16, fp8, fp4, fp32, bandwidth, link, peers},
#include "device/null/gpus.def"
#undef GPU
    };
    CudaDevice *cuda = cuda_of(device);
    size_t      free_bytes, total;
    TRY(enter(cuda));
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
    *out = (DeviceFacts){.memory_bytes = (int64_t)free_bytes,
                         .driver_bytes = GPU_DRIVER_BYTES,
                         .taken_bytes = (int64_t)(total - free_bytes),
                         .peer_seconds = GPU_PEER_SECONDS,
                         .launch_seconds = 2e-6,
                         .num_workers = 1,
                         .sm = cuda->sm,
                         .fp8_blocks = cuda_gemm_has_blocks(cuda),
                         .fp4_blocks = cuda_gemm_has_fp4(cuda)};
    snprintf(out->name, sizeof out->name, "%s", cuda->name);
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        if (strcmp(gpus[i].name, cuda->name) != 0) continue;
        out->gemm_flops[DT_BF16] = out->gemm_flops[DT_F16] = gpus[i].bf16_tflops * 1e12;
        out->gemm_flops[DT_E4M3] = out->gemm_flops[DT_E5M2] = gpus[i].fp8_tflops * 1e12;
        out->gemm_flops[DT_E2M1] = gpus[i].fp4_tflops * 1e12;
        out->gemm_flops[DT_F32] = out->vector_flops = gpus[i].fp32_tflops * 1e12;
        out->bandwidth = gpus[i].gbytes_per_second * 1e9;
        out->link_in = out->link_out = gpus[i].link_gbytes_per_second * 1e9;
        out->peer_link = gpus[i].peer_gbytes_per_second * 1e9;
    }
    return OK;
}

/* ---- kernels ---- */

static bool serves(const CudaKernel *kernel, const Node *node, CudaDevice *cuda)
{
    if (cuda->sm < kernel->min_sm) return false;
    if (!op_types_fit(node, kernel->dtypes, kernel->except)) return false;
    return !kernel->match || kernel->match(node, cuda);
}

static const CudaKernelList *kernels_of(const Node *node)
{
    const OpDef *op = node->op;
    bool         known = op->id >= 0 && op->id < cuda_kernel_table_count && strcmp(cuda_kernel_table[op->id].op, op->name) == 0;
    return known ? cuda_kernel_table[op->id].kernels : NULL;
}

static Status variant(Device *device, const Node *node, int index, BoundKernel *out)
{
    CudaDevice           *cuda = cuda_of(device);
    const CudaKernelList *kernels = kernels_of(node);
    for (int i = 0; kernels && i < kernels->count; i++) {
        const CudaKernel *kernel = &kernels->rows[i];
        if (!serves(kernel, node, cuda) || index-- > 0) continue;
        *out = (BoundKernel){.run = kernel->run, .name = kernel->name};
        if (kernel->workspace) out->workspace_bytes = kernel->workspace(node, cuda);
        return OK;
    }
    return op_no_kernel(node, "CUDA");
}

static Status bind_kernel(Device *device, const Node *node, BoundKernel *out)
{
    return variant(device, node, 0, out);
}

static Status (*prepare_of(const Launch *launch))(const KernelArgs *)
{
    const CudaKernelList *kernels = launch->node ? kernels_of(launch->node) : NULL;
    for (int i = 0; kernels && i < kernels->count; i++)
        if (kernels->rows[i].run == launch->kernel.run) return kernels->rows[i].prepare;
    return NULL;
}

/* ---- memory ---- */

static Status alloc_host(bool write_combined, size_t bytes, void **out)
{
    unsigned    flags = cudaHostAllocPortable | cudaHostAllocMapped | (write_combined ? cudaHostAllocWriteCombined : 0);
    cudaError_t error = cudaHostAlloc(out, bytes ? bytes : 1, flags);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        FAIL(ERR_NO_FIT, "cannot pin %.2f GiB of the host's memory", (double)bytes / (1 << 30));
    }
    CUDA_TRY(error);
    memset(*out, 0, bytes);
    return OK;
}

static Status alloc(Device *device, Space space, size_t bytes, void **out)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    if (space == SPACE_HOST) return alloc_host(device->write_combined, bytes, out);
    cudaError_t error = cudaSuccess;
    Status      status = OK;
    if (cuda->peers)
        status = cuda_peers_alloc(cuda, bytes ? bytes : 256, out);
    else
        error = cudaMalloc(out, bytes ? bytes : 256);
    if (error == cudaErrorMemoryAllocation || status == ERR_NO_FIT) {
        size_t free_bytes = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &total);
        FAIL(ERR_NO_FIT,
             "cannot allocate %.2f GiB on %s: %.2f of %.2f GiB are free; a smaller batch or sequence, or "
             "recomputation, needs less",
             (double)bytes / (1 << 30), cuda->name, (double)free_bytes / (1 << 30), (double)total / (1 << 30));
    }
    TRY(status);
    CUDA_TRY(error);
    CUDA_TRY(cudaMemsetAsync(*out, 0, bytes ? bytes : 256, cuda->stream));
    return OK;
}

static void free_memory(Device *device, Space space, void *memory)
{
    cudaSetDevice(cuda_of(device)->index);
    cudaStreamSynchronize(cuda_of(device)->stream);
    if (!cuda_peers_settled(cuda_of(device))) return; /* another GPU may still read the memory, so it is leaked */
    if (space == SPACE_HOST)
        cudaFreeHost(memory);
    else if (!cuda_peers_free(cuda_of(device), memory))
        cudaFree(memory);
}

/* Returns up to `want` bytes of staging memory that no copy reads any more. */
static Status stage(CudaDevice *cuda, size_t want, char **out, size_t *out_bytes)
{
    if (cuda->staging_used + 64 >= PART_BYTES) {
        CUDA_TRY(cudaEventRecord(cuda->staging_free[cuda->staging_part], cuda->stream));
        cuda->staging_part = (cuda->staging_part + 1) % CUDA_STAGING_PARTS;
        cuda->staging_used = 0;
        CUDA_TRY(cudaEventSynchronize(cuda->staging_free[cuda->staging_part])); /* recorded CUDA_STAGING_PARTS parts ago */
    }
    size_t room = PART_BYTES - cuda->staging_used, bytes = want < room ? want : room;
    *out = cuda->staging + (size_t)cuda->staging_part * PART_BYTES + cuda->staging_used;
    *out_bytes = bytes;
    cuda->staging_used += (bytes + 63) / 64 * 64;
    return OK;
}

static Status upload_staged(CudaDevice *cuda, char *dst, const char *src, size_t bytes)
{
    while (bytes) {
        char  *part;
        size_t n;
        TRY(stage(cuda, bytes, &part, &n));
        memcpy(part, src, n);
        CUDA_TRY(cudaMemcpyAsync(dst, part, n, cudaMemcpyDefault, cuda->stream));
        dst += n, src += n, bytes -= n;
    }
    return OK;
}

static Status upload(Device *device, void *dst, const void *src, size_t bytes)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    struct cudaPointerAttributes attributes = {.type = cudaMemoryTypeUnregistered};
    if (bytes >= PINNED_AT_LEAST && cudaPointerGetAttributes(&attributes, src) != cudaSuccess) cudaGetLastError();
    if (attributes.type == cudaMemoryTypeHost) {
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda->stream));
        return OK;
    }
    return keep(cuda, upload_staged(cuda, dst, src, bytes), "upload");
}

static Status wait(CudaDevice *cuda, const char *where)
{
    cudaError_t error = cudaStreamSynchronize(cuda->stream);
    if (error == cudaSuccess) return keep(cuda, cuda_ranks_alive(cuda), "");
    return keep(cuda, cuda_failed(error, "cudaStreamSynchronize", __FILE__, __LINE__), where);
}

static Status download(Device *device, void *dst, const void *src, size_t bytes)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    if (bytes) CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda->stream));
    return wait(cuda, "download");
}

static Status take(Device *device, void *dst, const void *src, size_t bytes)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda->stream));
    return OK;
}

static Status settle(Device *device)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    CUDA_TRY(cudaDeviceSynchronize());
    return OK;
}

static Status follow(Device *device, Device *other)
{
    CudaDevice *cuda = cuda_of(device), *first = cuda_of(other);
    cudaEvent_t event;
    TRY(enter(first));
    CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaError_t error = cudaEventRecord(event, first->stream);
    if (error == cudaSuccess) error = cudaSetDevice(cuda->index);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(cuda->stream, event, 0);
    cudaEventDestroy(event); /* CUDA keeps the event until nothing waits for it */
    CUDA_TRY(error);
    return OK;
}

/* ---- launches ---- */

static Status prepare_each(CudaDevice *cuda, const Launch *launches, int count)
{
    for (int i = 0; i < count; i++) {
        Status (*hook)(const KernelArgs *) = prepare_of(&launches[i]);
        if (!hook) continue;
        KernelArgs args = launches[i].args;
        args.stream = cuda->stream;
        args.device = cuda;
        Status status = hook(&args);
        if (status != OK) return status_prefix(status, "preparing %s", launches[i].node->op->name);
    }
    cuda_gemm_save(cuda);
    return OK;
}

/* Rank 0 measures, then all ranks take over its choices. So every rank computes with the same algorithms, and so do later runs. */
static Status prepare_launches(CudaDevice *cuda, const Launch *launches, int count)
{
    Comm *comm = cuda->comm;
    if (comm_rank(comm) > 0) TRY(cuda_gemm_share(cuda, comm));
    TRY(prepare_each(cuda, launches, count));
    return comm_size(comm) > 1 && comm_rank(comm) == 0 ? cuda_gemm_share(cuda, comm) : OK;
}

static Status prepare(Device *device, const Launch *launches, int count, void **out_replay)
{
    CudaDevice *cuda = cuda_of(device);
    *out_replay = NULL;
    TRY(enter(cuda));
    Status status = prepare_launches(cuda, launches, count);
    if (status != OK) return keep(cuda, status, "");
    if (cuda->eager || !count) return wait(cuda, "prepare");
    cudaGraphExec_t exec = NULL;
    status = cuda_capture(cuda, launches, count, &exec);
    if (status != OK) return keep(cuda, status, "");
    *out_replay = exec;
    return wait(cuda, "prepare");
}

static Status launch(CudaDevice *cuda, const Launch *launches, int count, void *replay)
{
    if (!replay) return cuda->eager ? cuda_launch_in_turn(cuda, launches, count, true) : cuda_launch_all(cuda, launches, count);
    CUDA_TRY(cudaGraphLaunch((cudaGraphExec_t)replay, cuda->stream));
    return OK;
}

static Status run(Device *device, const Launch *launches, int count, void *replay)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    Status status = cuda_peers_enter(cuda);
    if (status == OK) status = launch(cuda, launches, count, replay);
    cuda_peers_leave(cuda);
    return keep(cuda, status, "");
}

static Status profile(Device *device, const Launch *launches, int count, double *seconds, double *out_overhead)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    Status status = cuda_peers_enter(cuda);
    if (status == OK) status = cuda_profile(cuda, launches, count, seconds, out_overhead);
    cuda_peers_leave(cuda);
    return keep(cuda, status, "profile");
}

static Status profile_waits(Device *device, const Launch *launches, int count, double *out_seconds)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    Status status = cuda_peers_enter(cuda);
    if (status == OK) status = cuda_profile_waits(cuda, launches, count, out_seconds);
    cuda_peers_leave(cuda);
    return keep(cuda, status, "profile_waits");
}

static void release(Device *device, void *replay)
{
    cudaSetDevice(cuda_of(device)->index);
    cudaStreamSynchronize(cuda_of(device)->stream);
    if (replay) cudaGraphExecDestroy((cudaGraphExec_t)replay);
}

static Status sync_device(Device *device)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    return wait(cuda, "a launch (SUROGATE_CUDA_EAGER=1 names it)");
}

static Status mark(Device *device, int slot)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    if (!cuda->marks[slot]) CUDA_TRY(cudaEventCreateWithFlags(&cuda->marks[slot], cudaEventBlockingSync));
    CUDA_TRY(cudaEventRecord(cuda->marks[slot], cuda->stream));
    return OK;
}

static Status await(Device *device, int slot)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    if (!cuda->marks[slot]) return OK;
    cudaError_t error = cudaEventSynchronize(cuda->marks[slot]);
    if (error == cudaSuccess) return keep(cuda, cuda_ranks_alive(cuda), "");
    return keep(cuda, cuda_failed(error, "cudaEventSynchronize", __FILE__, __LINE__), "a launch (SUROGATE_CUDA_EAGER=1 names it)");
}

static Status seconds_between(Device *device, int from_slot, int to_slot, double *out)
{
    CudaDevice *cuda = cuda_of(device);
    float       ms = 0;
    TRY(enter(cuda));
    CUDA_TRY(cudaEventElapsedTime(&ms, cuda->marks[from_slot], cuda->marks[to_slot]));
    *out = 1e-3 * (double)ms;
    return OK;
}

static void tuning_get(Device *device, char *out, size_t size)
{
    cuda_gemm_export(cuda_of(device), out, size);
}

static void tuning_set(Device *device, const char *text)
{
    cuda_gemm_import(cuda_of(device), text);
}

static Status join(Device *device, Comm *comm)
{
    CudaDevice *cuda = cuda_of(device);
    TRY(enter(cuda));
    return keep(cuda, cuda_ranks_join(cuda, comm), "");
}

static void destroy(Device *device)
{
    CudaDevice *cuda = cuda_of(device);
    cudaSetDevice(cuda->index);
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
    cuda_ranks_close(cuda);
    cuda_gemm_close(cuda);
    cuda_sdpa_close(cuda);
    cuda_libraries_close(&cuda->lib);
    for (int i = 0; i < CUDA_STAGING_PARTS; i++)
        if (cuda->staging_free[i]) cudaEventDestroy(cuda->staging_free[i]);
    for (int i = 0; i < DEVICE_MARKS; i++)
        if (cuda->marks[i]) cudaEventDestroy(cuda->marks[i]);
    if (cuda->staging) cudaFreeHost(cuda->staging);
    for (int i = 0; i < STREAM_COUNT; i++)
        if (cuda->side[i]) cudaStreamDestroy(cuda->side[i]);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
    free(cuda);
}

const DeviceApi cuda_device_api = {
    .name = "cuda",
    .facts = facts,
    .bind = bind_kernel,
    .variant = variant,
    .alloc = alloc,
    .free = free_memory,
    .upload = upload,
    .download = download,
    .take = take,
    .settle = settle,
    .follow = follow,
    .prepare = prepare,
    .run = run,
    .profile = profile,
    .profile_waits = profile_waits,
    .release = release,
    .sync = sync_device,
    .mark = mark,
    .await = await,
    .seconds_between = seconds_between,
    .tuning_get = tuning_get,
    .tuning_set = tuning_set,
    .join = join,
    .destroy = destroy,
};
