/* A device that only plans: facts of a named GPU or of this machine, a kernel for every node, and no memory. */
#include "device/device.h"

#include "device/cpu/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct GpuFacts {
    const char *id, *name;
    int         sm, memory_mib;
    double      bf16_tflops, fp8_tflops, fp4_tflops, fp32_tflops, gbytes_per_second, link_gbytes_per_second, peer_gbytes_per_second;
} GpuFacts;

static const GpuFacts gpus[] = {
#define GPU(id, name, sm, memory, bf16, fp8, fp4, fp32, bandwidth, link, peers) \
    {id, name, sm, memory, bf16, fp8, fp4, fp32, bandwidth, link, peers},
#include "device/null/gpus.def"
#undef GPU
};

enum { NUM_GPUS = sizeof gpus / sizeof gpus[0] };

typedef struct NullDevice {
    Device      base;
    DeviceFacts facts;
    bool        is_gpu; /* kernels get as much workspace as CUDA's kernels would */
} NullDevice;

static Status null_facts(Device *device, DeviceFacts *out)
{
    *out = ((NullDevice *)device)->facts;
    return OK;
}

static Status refuse(Device *device)
{
    FAIL(ERR_UNSUPPORTED, "device null plans for %s and runs nothing: use device cpu or cuda", ((NullDevice *)device)->facts.name);
}

static Status null_kernel(const KernelArgs *args)
{
    return refuse(args->device);
}

static Status null_bind(Device *device, const Node *node, BoundKernel *out)
{
    *out = (BoundKernel){.run = null_kernel, .name = "null"};
    NullDevice *null = (NullDevice *)device;
    if (!null->is_gpu) return OK;
    if (node->op->gpu_workspace)
        out->workspace_bytes = node->op->gpu_workspace(node, null->facts.sm);
    else if (node->op->cost && node->op->cost(node).matrix_unit)
        out->workspace_bytes = GPU_GEMM_WORKSPACE;
    return OK;
}

static Status null_alloc(Device *device, Space space, size_t bytes, void **out)
{
    (void)space;
    (void)bytes;
    *out = NULL;
    return refuse(device);
}

static void null_free(Device *device, Space space, void *memory)
{
    (void)space;
    (void)device;
    (void)memory;
}

static Status null_copy(Device *device, void *dst, const void *src, size_t bytes)
{
    (void)dst;
    (void)src;
    (void)bytes;
    return refuse(device);
}

static Status null_prepare(Device *device, const Launch *launches, int count, void **out_replay)
{
    (void)launches;
    (void)count;
    *out_replay = NULL;
    return refuse(device);
}

static Status null_run(Device *device, const Launch *launches, int count, void *replay)
{
    (void)launches;
    (void)count;
    (void)replay;
    return refuse(device);
}

static void null_release(Device *device, void *replay)
{
    (void)device;
    (void)replay;
}

static Status null_mark(Device *device, int slot)
{
    (void)slot;
    return refuse(device);
}

static Status null_seconds_between(Device *device, int from_slot, int to_slot, double *out)
{
    (void)from_slot;
    (void)to_slot;
    (void)out;
    return refuse(device);
}

static Status null_sync(Device *device)
{
    (void)device;
    return OK;
}

static Status null_follow(Device *device, Device *other)
{
    (void)device, (void)other;
    return OK;
}

static void null_destroy(Device *device)
{
    free(device);
}

static const DeviceApi null_api = {
    .name = "null",
    .facts = null_facts,
    .bind = null_bind,
    .alloc = null_alloc,
    .free = null_free,
    .upload = null_copy,
    .download = null_copy,
    .take = null_copy,
    .settle = null_sync,
    .follow = null_follow,
    .prepare = null_prepare,
    .run = null_run,
    .release = null_release,
    .sync = null_sync,
    .mark = null_mark,
    .await = null_mark,
    .seconds_between = null_seconds_between,
    .destroy = null_destroy,
};

const char *device_null_names(void)
{
    static const char names[] =
#define GPU(id, name, sm, memory, bf16, fp8, fp4, fp32, bandwidth, link, peers) ", " id
#include "device/null/gpus.def"
#undef GPU
        ;
    return names + 2;
}

static void gpu_facts(const GpuFacts *gpu, DeviceFacts *out)
{
    *out = (DeviceFacts){.memory_bytes = (int64_t)gpu->memory_mib * 1048576 - GPU_DRIVER_BYTES,
                         .driver_bytes = GPU_DRIVER_BYTES,
                         .driver_is_apart = true,
                         .vector_flops = gpu->fp32_tflops * 1e12,
                         .bandwidth = gpu->gbytes_per_second * 1e9,
                         .link_in = gpu->link_gbytes_per_second * 1e9,
                         .link_out = gpu->link_gbytes_per_second * 1e9,
                         .peer_link = gpu->peer_gbytes_per_second * 1e9,
                         .peer_seconds = GPU_PEER_SECONDS,
                         .launch_seconds = 2e-6,
                         .num_workers = 1,
                         .sm = gpu->sm,
                         .fp8_blocks = gpu->sm == 90,
                         .fp4_blocks = gpu->sm >= 100};
    out->gemm_flops[DT_F32] = gpu->fp32_tflops * 1e12;
    out->gemm_flops[DT_BF16] = out->gemm_flops[DT_F16] = gpu->bf16_tflops * 1e12;
    out->gemm_flops[DT_E4M3] = out->gemm_flops[DT_E5M2] = gpu->fp8_tflops * 1e12;
    out->gemm_flops[DT_E2M1] = gpu->fp4_tflops * 1e12;
    snprintf(out->name, sizeof out->name, "%s", gpu->name);
}

static NullDevice *create(void)
{
    NullDevice *null = calloc_or_end(1, sizeof *null);
    null->base.api = &null_api;
    return null;
}

Status device_null_of(Device *gpu, Device **out)
{
    DeviceFacts facts;
    TRY(gpu->api->facts(gpu, &facts));
    NullDevice *null = create();
    null->facts = facts;
    null->is_gpu = true;
    *out = &null->base;
    return OK;
}

/* Normalises a GPU's name as people write it: lower-case letters and digits only, without the maker. */
static void plain_name(const char *text, char *out, size_t size)
{
    static const char *const left_out[] = {"nvidia", "geforce"};
    size_t                   len = 0;
    while (*text && len + 1 < size) {
        for (size_t i = 0; i < 2; i++)
            if (strncasecmp(text, left_out[i], strlen(left_out[i])) == 0) text += strlen(left_out[i]);
        char c = *text;
        if (c >= 'A' && c <= 'Z') c = (char)(c - 'A' + 'a');
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) out[len++] = c;
        if (c) text++;
    }
    out[len] = 0;
}

static bool is_called(const GpuFacts *gpu, const char *plain)
{
    char id[64], name[64];
    plain_name(gpu->id, id, sizeof id);
    plain_name(gpu->name, name, sizeof name);
    return strcmp(plain, id) == 0 || strcmp(plain, name) == 0 || (strncmp(id, "rtx", 3) == 0 && strcmp(plain, id + 3) == 0);
}

static Status find_gpu(const char *gpu, int *out)
{
    static const char *const too_old[] = {"t4",      "v100",   "p100",      "p40",     "rtx2060",   "rtx2070",
                                          "rtx2080", "2080ti", "rtx2080ti", "gtx1080", "gtx1080ti", "titanrtx"};
    char                     plain[64];
    plain_name(gpu, plain, sizeof plain);
    for (int i = 0; i < NUM_GPUS; i++) {
        *out = i;
        if (is_called(&gpus[i], plain)) return OK;
    }
    for (size_t i = 0; i < sizeof too_old / sizeof too_old[0]; i++)
        FAIL_IF(strcmp(plain, too_old[i]) == 0, ERR_UNSUPPORTED,
                "GPU \"%s\" is of a compute capability below 8.0, the least that is supported; known are %s", gpu, device_null_names());
    FAIL(ERR_INVALID, "GPU \"%s\" is not known; known are %s; for another one name one of its kind with the memory that it has, as %s", gpu,
         device_null_names(), "--gpu rtx4090 gpu_memory=16GB");
}

Status device_null_create(const char *gpu, Device **out)
{
    int found = -1;
    if (gpu) TRY(find_gpu(gpu, &found));
    NullDevice *null = create();
    null->is_gpu = gpu != NULL;
    if (gpu)
        gpu_facts(&gpus[found], &null->facts);
    else
        cpu_facts(0, &null->facts);
    *out = &null->base;
    return OK;
}
