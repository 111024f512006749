/* Device: memory, launches and copies of one machine or GPU. cpu is always there, null plans and schedules anything and runs
 * nothing, cuda is a plugin opened at run time. A device error is sticky: every later call returns it. */
#pragma once

#include "ir/op.h"

typedef struct Device Device;

/* What launches of an op were found to reach on a GPU: seconds + max(flops / rate, bytes / rate), where a rate of 0 never bounds it. */
typedef struct OpRate {
    const char *op; /* NULL ends a table */
    double      flops, bytes, seconds;
} OpRate;

/* What planning needs to know; known for named GPUs without having one. */
typedef struct DeviceFacts {
    char    name[64];
    int64_t memory_bytes;    /* what programs may take; 0: unknown */
    int64_t driver_bytes;    /* what is left to driver and libraries beside; 0: it is no GPU */
    bool    driver_is_apart; /* memory_bytes is the GPU's memory without those; else what is free, when the driver has its own already */
    int64_t taken_bytes;     /* of the device's memory, by all that run there at the moment; 0: unknown */
    bool    is_host;         /* its memory is the host's */
    double  gemm_flops[DT_COUNT]; /* per second, by operand dtype; 0: unknown */
    double  vector_flops;         /* per second, fp32 */
    double  bandwidth;            /* bytes per second, read plus written */
    double  link_in, link_out;    /* bytes per second from and to the host's pinned memory; 0: unknown */
    double  peer_link;            /* bytes per second to other GPUs of the host, and as many from them at once; 0: unknown */
    double  peer_seconds;         /* what a collective costs beside */
    /* What the limit of its power lets a GPU do for long, a second, of 16-bit products, of 8-bit ones, of memory traffic, each alone: what
     * it does of them together takes the sum of their times. 0: unknown. */
    double        power_flops, power_fp8_flops, power_bytes;
    double        launch_seconds; /* fixed cost of a step in a replayed program */
    int           num_workers;    /* CPU: threads */
    int           sm;             /* a GPU's compute capability times 10; 0: it is no GPU */
    bool          fp8_blocks;     /* multiplies FP8 operands whose blocks have scales in their own format */
    bool          fp4_blocks;     /* multiplies FP4 operands with scales of blocks (op fp4_linear) */
    const OpRate *rates;          /* NULL: none were measured */
} DeviceFacts;

/* What was measured on the GPU of that name takes the data sheet's place (device/rates.c). */
void device_use_rates(DeviceFacts *facts);

enum { DEVICE_STEP_MARKS = 8, DEVICE_RUN_MARKS = 4, DEVICE_MARKS = DEVICE_STEP_MARKS + DEVICE_RUN_MARKS };

/* What a GPU's matrix products are given to work in; what is left to its driver's context and the libraries; what these were seen to take
 * on an H200, without NCCL. */
enum { GPU_GEMM_WORKSPACE = 32 << 20, GPU_DRIVER_BYTES = 1 << 30, GPU_CONTEXT_BYTES = 543 << 20 };

/* What a collective of GPUs costs beside the bytes that cross: as measured on H200s. */
#define GPU_PEER_SECONDS 2.6e-5

/* A launch's kernel with everything bound, owned by the program that asked for it. */
typedef struct BoundKernel {
    KernelFn    run;
    const char *name; /* variant: "reference", "warp", ... */
    size_t      workspace_bytes;
} BoundKernel;

/* One instruction of a program. It starts when the launch before it on its own stream and those it waits for have finished. */
typedef struct Launch {
    BoundKernel kernel;
    KernelArgs  args;
    const Node *node;
    Stream      stream;
    int32_t     wait[STREAM_COUNT]; /* 1 + index of the last launch of that stream to wait for; 0: none */
} Launch;

typedef struct DeviceApi {
    const char *name;
    bool        is_synchronous; /* what is run has finished when the call returns */
    Status (*facts)(Device *device, DeviceFacts *out);
    /* Chooses a kernel for the node: dtypes and shapes are final. ERR_UNSUPPORTED names op and dtypes. Planning time: also
     * says how much workspace it needs. */
    Status (*bind)(Device *device, const Node *node, BoundKernel *out);
    /* The index'th kernel that serves the node, bind's being 0: for tests of all. ERR_UNSUPPORTED past the last. NULL: not offered. */
    Status (*variant)(Device *device, const Node *node, int index, BoundKernel *out);
    Status (*alloc)(Device *device, Space space, size_t bytes, void **out); /* 256-byte aligned, zeroed; ERR_NO_FIT */
    void (*free)(Device *device, Space space, void *memory);
    Status (*upload)(
        Device *device, void *dst, const void *src,
        size_t bytes); /* ordered with launches; src may be reused on return unless of SPACE_HOST: then after sync or the next run */
    Status (*download)(Device *device, void *dst, const void *src, size_t bytes); /* waits for launches before it */
    /* As upload, of memory that the device reads itself, as another library's arrays on it: src stays as it is until what is run next ends.
     */
    Status (*take)(Device *device, void *dst, const void *src, size_t bytes);
    Status (*settle)(Device *device); /* waits for all that the device does, for other libraries too */
    /* What is queued on the device next comes after what is queued on `other`, of the same kind, so far. */
    Status (*follow)(Device *device, Device *other);
    /* Turns a list of launches into something replayable; *out_replay may be NULL (CPU: the list itself). Comes before anything
     * lasting is written: algorithms may be measured on the launches' memory, which is zero again on return. */
    Status (*prepare)(Device *device, const Launch *launches, int count, void **out_replay);
    Status (*run)(Device *device, const Launch *launches, int count, void *replay); /* asynchronous; errors may come later */
    /* Where a run of the program spends its time: seconds[i] from launch i's start to the next one's, measured inside whole runs as
     * run() makes them, several of them (so what the program changes moves on). What measuring a launch costs is taken off, and is
     * *out_overhead. NULL: not offered. */
    Status (*profile)(Device *device, const Launch *launches, int count, double *seconds, double *out_overhead);
    /* How long the compute stream stands and waits for other streams, other ranks or the host in a run of the program: of several, the
     * mean. All ranks call it together. NULL: not offered. */
    Status (*profile_waits)(Device *device, const Launch *launches, int count, double *out_seconds);
    void (*release)(Device *device, void *replay);
    Status (*sync)(Device *device); /* waits; returns the sticky error */
    /* A mark stands behind everything queued before it: `mark` sets the one numbered `slot` (0 to DEVICE_MARKS - 1) anew, `await` waits
     * for what stands before it. Results that launches wrote to SPACE_HOST may be read then. */
    Status (*mark)(Device *device, int slot);
    Status (*await)(Device *device, int slot);
    /* Seconds from when the device reached one mark to when it reached the other; both were awaited. */
    Status (*seconds_between)(Device *device, int from_slot, int to_slot, double *out);
    /* What prepare measured and chose, as text (NUL-terminated, cut at size), so that a resumed run chooses the same; taking such
     * a text comes before programs are prepared, and what doesn't fit this device is ignored. NULL: nothing is chosen. */
    void (*tuning_get)(Device *device, char *out, size_t size);
    void (*tuning_set)(Device *device, const char *text);
    /* This device is that rank's: collective ops are launched over the ranks' devices. Once, before programs are prepared, by all ranks;
     * comm outlives the device. A rank that fails calls comm_abort before it frees memory that collectives use. NULL: not offered. */
    Status (*join)(Device *device, Comm *comm);
    void (*destroy)(Device *device);
} DeviceApi;

/* How collective ops cross from GPU to GPU. */
typedef enum CrossBy { CROSS_AUTO, CROSS_COPIES, CROSS_NCCL } CrossBy;

struct Device {
    const DeviceApi *api;
    bool             write_combined;       /* pinned memory allocated from here on is, where the device knows that */
    CrossBy          gather_by, reduce_by; /* as asked for, before join; auto: by copies where that can be */
    void            *stream;               /* CUDA: the cudaStream_t that copies and runs are queued to; else NULL */
};

/* "cpu", "cuda", or "auto": CUDA where it can be used, else the CPU; where there is a driver, stderr says what else CUDA lacks. index: of
 * the GPU. threads: of the CPU, 0 all. */
NODISCARD Status device_open(const char *name, int index, int threads, Device **out);
bool             device_is(const Device *device, const char *name); /* "cpu", "cuda" or "null" */
/* Settings that libraries read from the environment when ranks join: from the one thread there is, before their threads begin, as nobody
 * may read the environment while it is written. What is set already stays. is_local: all ranks are of this host. */
void             device_prepare_ranks(bool is_local);
bool             device_has_driver(void);                          /* of NVIDIA's GPUs; without one "auto" is the CPU */
NODISCARD Status device_cpu_create(int num_threads, Device **out); /* 0: all cores */
/* Bytes of the host's memory that may be taken; 0: unknown. */
int64_t device_host_available(void);
/* Facts of a known GPU by name ("h200", "h100", "rtx4090", ...) or of this machine (NULL). */
NODISCARD Status device_null_create(const char *gpu, Device **out);
/* The same of a GPU that is here, which says its facts. */
NODISCARD Status device_null_of(Device *gpu, Device **out);
const char      *device_null_names(void);         /* the known names, for messages */
ThreadPool      *device_cpu_pool(Device *device); /* NULL for other devices: work then runs on the calling thread */
/* What all threads of a CPU device reach together: fp32 GEMM flops and, unless out_bytes is NULL, memory traffic (read plus written) per
 * second. Takes at most about 100 ms. */
NODISCARD Status device_cpu_measure_peak(Device *device, double *out_flops, double *out_bytes);
/* The plugin; message says exactly what is missing (driver, library, GPU). */
NODISCARD Status device_cuda_create(int index, Device **out);
/* Lines about a CUDA device: GPU, driver, libraries with versions and paths. */
void device_cuda_describe(Device *device, char *out, size_t size);
/* Measures copies to and from the host and to other GPUs: a line each. */
NODISCARD Status device_cuda_links(Device *device, char *out, size_t size);
