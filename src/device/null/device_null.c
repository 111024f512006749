/* A device that only plans: facts of a named GPU or of this machine, a kernel for every node, and no memory. */
#include "device/device.h"

#include "device/cpu/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    bool        is_gpu; /* kernels get the workspace that CUDA's would */
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
    out->gemm_flops[DT_BF16] = gpu->bf16_tflops * 1e12;
    out->gemm_flops[DT_E4M3] = out->gemm_flops[DT_E5M2] = gpu->fp8_tflops * 1e12;
    out->gemm_flops[DT_E2M1] = gpu->fp4_tflops * 1e12;
    snprintf(out->name, sizeof out->name, "%s", gpu->name);
}

static NullDevice *create(void)
{
    NullDevice *null = calloc(1, sizeof *null);
    if (!null) fatal_out_of_memory(sizeof *null);
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

Status device_null_create(const char *gpu, Device **out)
{
    int found = -1;
    for (int i = 0; gpu && i < NUM_GPUS; i++)
        if (strcmp(gpus[i].id, gpu) == 0) found = i;
    FAIL_IF(gpu && found < 0, ERR_INVALID, "GPU \"%s\" is not known; known are %s", gpu, device_null_names());
    NullDevice *null = create();
    null->is_gpu = gpu != NULL;
    if (gpu)
        gpu_facts(&gpus[found], &null->facts);
    else
        cpu_facts(0, &null->facts);
    *out = &null->base;
    return OK;
}
