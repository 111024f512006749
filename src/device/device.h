/* Device: memory, launches and copies of one machine or GPU. Device cpu always exists; null plans and schedules for any device but runs
 * nothing; cuda is a plugin loaded at run time. A device error is sticky: every later call returns it. */
#pragma once

#include "ir/op.h"

typedef struct Device Device;

/* Measured speed of an op's launches on a GPU: seconds + max(flops / rate, bytes / rate). A rate of 0 is no bound. */
typedef struct OpRate {
    const char *op; /* NULL: end of a table */
    double      flops, bytes, seconds;
} OpRate;

/* Facts for planning; for GPUs with a known name they are there without the GPU. */
typedef struct DeviceFacts {
    char    name[64];
    int64_t memory_bytes; /* bytes that programs may use; 0: unknown */
    int64_t driver_bytes; /* bytes reserved for driver and libraries; 0: it is no GPU */
    bool driver_is_apart; /* true: memory_bytes is the GPU's memory minus driver_bytes; false: it is the free memory, after the driver took
                             its part */
    int64_t taken_bytes;  /* device memory in use now, by all processes; 0: unknown */
    bool    is_host;      /* device memory is host memory */
    double  gemm_flops[DT_COUNT]; /* per second, by operand dtype; 0: unknown */
    double  vector_flops;         /* per second, fp32 */
    double  bandwidth;            /* bytes per second, read plus written */
    double  link_in, link_out;    /* bytes per second from and to the host's pinned memory; 0: unknown */
    double  peer_link;            /* bytes per second to other GPUs of the host, and as many from them at the same time; 0: unknown */
    double  peer_seconds;         /* fixed cost of a collective */
    /* Rates a second that the GPU's power limit sustains: flops of 16-bit products, of 8-bit products, bytes of memory traffic, each
     * alone. Work of several kinds takes the sum of their times. 0: unknown. */
    double        power_flops, power_fp8_flops, power_bytes;
    double        launch_seconds; /* fixed cost of a launch in a replayed program */
    int           num_workers;    /* CPU: number of threads */
    int           sm;             /* compute capability times 10; 0: it is no GPU */
    bool          fp8_blocks;     /* supports FP8 products with one FP32 scale per block of an operand */
    bool          fp4_blocks;     /* supports FP4 products with one scale per block (op fp4_linear) */
    const OpRate *rates;          /* NULL: none were measured for it */
} DeviceFacts;

/* Replaces facts from the data sheet by measurements of the GPU of that name, if there are any (device/rates.c). */
void device_use_rates(DeviceFacts *facts);

enum { DEVICE_STEP_MARKS = 8, DEVICE_RUN_MARKS = 4, DEVICE_MARKS = DEVICE_STEP_MARKS + DEVICE_RUN_MARKS };

/* Bytes of: workspace for a GPU's matrix products; memory reserved for the driver's context and libraries; memory that these were seen
 * to use on an H200, without NCCL. */
enum { GPU_GEMM_WORKSPACE = 32 << 20, GPU_DRIVER_BYTES = 1 << 30, GPU_CONTEXT_BYTES = 543 << 20 };

/* Fixed cost of a collective between GPUs, beside moving bytes; measured on H200s. */
#define GPU_PEER_SECONDS 2.6e-5

/* The kernel chosen for a launch, with the workspace it needs. Owned by the program it was bound for. */
typedef struct BoundKernel {
    KernelFn    run;
    const char *name; /* name of the variant: "reference", "warp", ... */
    size_t      workspace_bytes;
} BoundKernel;

/* One instruction of a program. It starts when the previous launch on its own stream and the launches in `wait` have finished. */
typedef struct Launch {
    BoundKernel kernel;
    KernelArgs  args;
    const Node *node;
    Stream      stream;
    int32_t     wait[STREAM_COUNT]; /* by stream: 1 + index of the last launch there to wait for; 0: none */
} Launch;

typedef struct DeviceApi {
    const char *name;
    bool        is_synchronous; /* run() returns when all launches have finished */
    Status (*facts)(Device *device, DeviceFacts *out);
    /* Chooses a kernel for the node and says how much workspace it needs; called when planning, with final dtypes and shapes.
     * ERR_UNSUPPORTED names op and dtypes. */
    Status (*bind)(Device *device, const Node *node, BoundKernel *out);
    /* Another kernel that supports the node, so that tests can run all of them; index 0 is bind's choice. ERR_UNSUPPORTED: no more
     * kernels. NULL: not offered. */
    Status (*variant)(Device *device, const Node *node, int index, BoundKernel *out);
    Status (*alloc)(Device *device, Space space, size_t bytes, void **out); /* 256-byte aligned and zeroed; ERR_NO_FIT: out of memory */
    void (*free)(Device *device, Space space, void *memory);
    Status (*upload)(
        Device *device, void *dst, const void *src,
        size_t bytes); /* ordered with launches; src may be reused on return, or if it is in SPACE_HOST, after sync or the next run */
    Status (*download)(Device *device, void *dst, const void *src, size_t bytes); /* waits for all earlier launches */
    /* Like upload, but src is memory that the device itself reads, such as an array of another library on the device. It must not change
     * until the next run has finished. */
    Status (*take)(Device *device, void *dst, const void *src, size_t bytes);
    Status (*settle)(Device *device); /* waits for all work on the device, of other libraries too */
    /* Work queued next on the device waits for all work queued so far on `other`, a device of the same kind. */
    Status (*follow)(Device *device, Device *other);
    /* Turns a list of launches into something replayable; *out_replay may be NULL (CPU: the list itself is run). Call it before anything
     * lasting is written: it may run launches on their memory to measure algorithms, and zeroes that memory again. */
    Status (*prepare)(Device *device, const Launch *launches, int count, void **out_replay);
    Status (*run)(Device *device, const Launch *launches, int count, void *replay); /* asynchronous; errors may come later */
    /* Measures where a run of the program spends its time: seconds[i] from launch i's start to the next launch's start, within whole
     * runs as by run(). The program runs several times, so its state advances. *out_overhead: cost of measuring a launch, already
     * subtracted. NULL: not offered. */
    Status (*profile)(Device *device, const Launch *launches, int count, double *seconds, double *out_overhead);
    /* Measures how long the compute stream waits for other streams, other ranks or the host in one run of the program; mean of several
     * runs. All ranks must call it together. NULL: not offered. */
    Status (*profile_waits)(Device *device, const Launch *launches, int count, double *out_seconds);
    void (*release)(Device *device, void *replay);
    Status (*sync)(Device *device); /* waits for all launches; returns the sticky error */
    /* `mark` puts a mark, numbered `slot` (0 to DEVICE_MARKS - 1), behind all work queued so far; it replaces the slot's earlier mark.
     * `await` waits until the device has reached the mark. Then results that launches wrote to SPACE_HOST may be read. */
    Status (*mark)(Device *device, int slot);
    Status (*await)(Device *device, int slot);
    /* Seconds between the moments when the device reached the two marks; both must have been awaited. */
    Status (*seconds_between)(Device *device, int from_slot, int to_slot, double *out);
    /* tuning_get writes what prepare measured and chose as text (NUL-terminated, cut at size), so that a resumed run makes the same
     * choices. tuning_set reads the text back, before programs are prepared, and ignores parts for other devices. NULL: the device
     * chooses nothing. */
    void (*tuning_get)(Device *device, char *out, size_t size);
    void (*tuning_set)(Device *device, const char *text);
    /* Joins this device to the rank of `comm`, so that collective ops run over the devices of all ranks. All ranks call it once, before
     * programs are prepared; comm must outlive the device. A rank that fails calls comm_abort before it frees memory that collectives
     * use. NULL: not offered. */
    Status (*join)(Device *device, Comm *comm);
    void (*destroy)(Device *device);
} DeviceApi;

/* How collective ops move data between GPUs. */
typedef enum CrossBy { CROSS_AUTO, CROSS_COPIES, CROSS_NCCL } CrossBy;

struct Device {
    const DeviceApi *api;
    bool             write_combined;       /* pinned memory allocated from now on is write-combined, if the device supports that */
    CrossBy          gather_by, reduce_by; /* set before join; auto: by copies if possible */
    void            *stream;               /* CUDA: the cudaStream_t on which copies and runs are queued; else NULL */
};

/* name: "cpu", "cuda", or "auto": CUDA if it can be used, else the CPU. If there is a driver but CUDA can't be used, stderr says what is
 * missing. index: number of the GPU. threads: of the CPU, 0: all. */
NODISCARD Status device_open(const char *name, int index, int threads, Device **out);
bool             device_is(const Device *device, const char *name); /* name: "cpu", "cuda" or "null" */
/* Sets environment variables that libraries read when ranks join; those that are set already stay. Call it while there is only one
 * thread, as nobody may read the environment while it is written. is_local: all ranks are on this host. */
void             device_prepare_ranks(bool is_local);
bool             device_has_driver(void);                          /* whether NVIDIA's driver is installed; without it "auto" is the CPU */
NODISCARD Status device_cpu_create(int num_threads, Device **out); /* 0: all cores */
/* Bytes of host memory available for use; 0: unknown. */
int64_t device_host_available(void);
/* A device with the facts of a known GPU ("h200", "h100", "rtx4090", ...), or of this machine (NULL). */
NODISCARD Status device_null_create(const char *gpu, Device **out);
/* A null device with the facts of a GPU that is present. */
NODISCARD Status device_null_of(Device *gpu, Device **out);
const char      *device_null_names(void);         /* the known names, for messages */
ThreadPool      *device_cpu_pool(Device *device); /* NULL for other devices: host work then runs on the calling thread */
/* Measures the peak of all threads of a CPU device together: fp32 GEMM flops and, unless out_bytes is NULL, bytes of memory traffic
 * (read plus written) per second. Takes at most about 100 ms. */
NODISCARD Status device_cpu_measure_peak(Device *device, double *out_flops, double *out_bytes);
/* Opens GPU `index` through the plugin; the message of a failure says exactly what is missing (driver, library, GPU). */
NODISCARD Status device_cuda_create(int index, Device **out);
/* Writes lines about a CUDA device: GPU, driver, libraries with versions and paths. */
void device_cuda_describe(Device *device, char *out, size_t size);
/* Measures copies to and from the host and to other GPUs, and writes a line for each. */
NODISCARD Status device_cuda_links(Device *device, char *out, size_t size);
