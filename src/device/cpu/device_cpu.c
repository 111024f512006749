/* The CPU as a device: memory is the process's own; launches run immediately, one after another, each spread over the thread pool. */
#include "device/device.h"

#include "base/clock.h"
#include "base/pool.h"
#include "device/cpu/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ALIGNMENT = 256,
    HUGE_PAGE = 2 * 1024 * 1024, /* big allocations are aligned to it and ask for huge pages: fewer TLB misses */
};

typedef struct CpuDevice {
    Device      base;
    ThreadPool *pool;
    Comm       *comm;                /* NULL: one rank */
    double      marks[DEVICE_MARKS]; /* when each mark was set, in seconds */
    void       *peak_memory;         /* memory of device_cpu_measure_peak, kept for its next call */
    Status      error;               /* status of the first launch that failed, which stays, with its message */
    char        message[512];
} CpuDevice;

static CpuDevice *cpu_of(Device *device)
{
    return (CpuDevice *)device;
}

static Status sticky(const CpuDevice *cpu)
{
    if (cpu->error == OK) return OK;
    FAIL(cpu->error, "%s", cpu->message);
}

static Status cpu_device_facts(Device *device, DeviceFacts *out)
{
    cpu_facts(pool_num_workers(cpu_of(device)->pool), out);
    return OK;
}

static Status cpu_variant(Device *device, const Node *node, int index, BoundKernel *out)
{
    const OpDef *op = node->op;
    for (int i = 0; i < OP_MAX_KERNELS && op->cpu[i].run; i++) {
        if (!op_types_fit(node, op->cpu[i].dtypes, op->cpu[i].except) || index-- > 0) continue;
        *out = (BoundKernel){.run = op->cpu[i].run, .name = op->cpu[i].name};
        if (op->workspace) out->workspace_bytes = op->workspace(node, pool_num_workers(cpu_of(device)->pool));
        return OK;
    }
    return op_no_kernel(node, "CPU");
}

static Status cpu_bind(Device *device, const Node *node, BoundKernel *out)
{
    return cpu_variant(device, node, 0, out);
}

static Status cpu_alloc(Device *device, Space space, size_t bytes, void **out)
{
    (void)space;
    TRY(sticky(cpu_of(device)));
    size_t alignment = bytes >= 2 * (size_t)HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    FAIL_IF(rounded < bytes, ERR_NO_FIT, "cannot allocate %zu bytes", bytes);
    void *memory = aligned_alloc(alignment, rounded ? rounded : ALIGNMENT);
    FAIL_IF(!memory, ERR_NO_FIT, "cannot allocate %.1f MiB of memory: a smaller batch, sequence or model needs less",
            (double)bytes / 1048576.0);
    if (alignment == HUGE_PAGE) madvise(memory, rounded, MADV_HUGEPAGE);
    memset(memory, 0, rounded);
    *out = memory;
    return OK;
}

static void cpu_free(Device *device, Space space, void *memory)
{
    (void)space;
    (void)device;
    free(memory);
}

static Status cpu_copy(Device *device, void *dst, const void *src, size_t bytes)
{
    TRY(sticky(cpu_of(device)));
    if (bytes) memcpy(dst, src, bytes);
    return OK;
}

static Status cpu_prepare(Device *device, const Launch *launches, int count, void **out_replay)
{
    (void)launches;
    (void)count;
    *out_replay = NULL;
    return sticky(cpu_of(device));
}

/* Writes which node failed: the source line that made it, its first output and its op. */
static void write_message(CpuDevice *cpu, const Launch *launch)
{
    const Node  *node = launch->node;
    const Value *out = node && node->num_out ? node->out[0] : NULL;
    const char  *source = node && node->source ? node->source : "", *name = out ? out->name : "";
    snprintf(cpu->message, sizeof cpu->message, "%s%s%s%s%s: %s", source, *source ? ": " : "", name, *name ? " = " : "",
             node ? node->op->name : launch->kernel.name, status_message());
}

static Status run_one(CpuDevice *cpu, const Launch *launch)
{
    KernelArgs args = launch->args;
    args.pool = cpu->pool;
    args.comm = cpu->comm;
    args.device = &cpu->base;
    Status status = launch->kernel.run(&args);
    if (status == OK) return OK;
    cpu->error = status;
    write_message(cpu, launch);
    return sticky(cpu);
}

static Status cpu_run(Device *device, const Launch *launches, int count, void *replay)
{
    CpuDevice *cpu = cpu_of(device);
    (void)replay;
    TRY(sticky(cpu));
    for (int i = 0; i < count; i++) TRY(run_one(cpu, &launches[i]));
    return OK;
}

static Status cpu_profile(Device *device, const Launch *launches, int count, double *seconds, double *out_overhead)
{
    enum { RUNS = 3 };
    CpuDevice *cpu = cpu_of(device);
    TRY(sticky(cpu));
    for (int i = 0; i < count; i++) seconds[i] = 0;
    for (int turn = 0; turn < RUNS; turn++) {
        double before = clock_seconds();
        for (int i = 0; i < count; i++) {
            TRY(run_one(cpu, &launches[i]));
            double after = clock_seconds();
            seconds[i] += (after - before) / RUNS;
            before = after;
        }
    }
    *out_overhead = 0; /* reading the clock takes some 30 ns */
    return OK;
}

static void cpu_release(Device *device, void *replay)
{
    (void)device;
    (void)replay;
}

static Status cpu_sync(Device *device)
{
    return sticky(cpu_of(device));
}

static Status cpu_follow(Device *device, Device *other)
{
    (void)device, (void)other;
    return OK;
}

static Status cpu_mark(Device *device, int slot)
{
    cpu_of(device)->marks[slot] = clock_seconds();
    return sticky(cpu_of(device));
}

static Status cpu_await(Device *device, int slot)
{
    (void)slot;
    return sticky(cpu_of(device));
}

static Status cpu_seconds_between(Device *device, int from_slot, int to_slot, double *out)
{
    *out = cpu_of(device)->marks[to_slot] - cpu_of(device)->marks[from_slot];
    return OK;
}

static Status cpu_join(Device *device, Comm *comm)
{
    cpu_of(device)->comm = comm;
    return sticky(cpu_of(device));
}

static void cpu_destroy(Device *device)
{
    pool_destroy(cpu_of(device)->pool);
    free(cpu_of(device)->peak_memory);
    free(device);
}

static const DeviceApi cpu_api = {
    .name = "cpu",
    .is_synchronous = true,
    .facts = cpu_device_facts,
    .bind = cpu_bind,
    .variant = cpu_variant,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .take = cpu_copy,
    .settle = cpu_sync,
    .follow = cpu_follow,
    .prepare = cpu_prepare,
    .run = cpu_run,
    .profile = cpu_profile,
    .release = cpu_release,
    .sync = cpu_sync,
    .mark = cpu_mark,
    .await = cpu_await,
    .seconds_between = cpu_seconds_between,
    .join = cpu_join,
    .destroy = cpu_destroy,
};

Status device_cpu_create(int num_threads, Device **out)
{
    CpuDevice *cpu = calloc_or_end(1, sizeof *cpu);
    cpu->base.api = &cpu_api;
    Status status = pool_create(num_threads, &cpu->pool);
    if (status != OK) {
        free(cpu);
        return status;
    }
    *out = &cpu->base;
    return OK;
}

ThreadPool *device_cpu_pool(Device *device)
{
    return device->api == &cpu_api ? cpu_of(device)->pool : NULL;
}

Status device_cpu_measure_peak(Device *device, double *out_flops, double *out_bytes)
{
    FAIL_IF(device->api != &cpu_api, ERR_UNSUPPORTED, "only a CPU's peak is measured");
    CpuDevice *cpu = cpu_of(device);
    if (!cpu->peak_memory) TRY(cpu_alloc(device, SPACE_DEVICE, cpu_peak_bytes(cpu->pool), &cpu->peak_memory));
    cpu_measure_peak(cpu->pool, cpu->peak_memory, out_flops, out_bytes);
    return OK;
}
