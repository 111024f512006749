/* The plugin's device: one GPU with its streams, libraries and caches, as GEMM, attention and collectives use it. */
#pragma once

#include "device/cuda/libraries.h"
#include "device/device.h"

#include <cuda_runtime_api.h>

enum {
    CUDA_STAGING_BYTES = 8 << 20, /* pinned memory for copies, in CUDA_STAGING_PARTS parts */
    CUDA_STAGING_PARTS = 4,
};

typedef struct CudaGemmCache CudaGemmCache; /* defined in gemm.c */
typedef struct CudaSdpaCache CudaSdpaCache; /* defined in sdpa.c */
typedef struct CudaNccl      CudaNccl;      /* defined in nccl.c */
typedef struct CudaPeers     CudaPeers;     /* defined in peer.c */

typedef struct CudaDevice {
    Device         base;
    int            index, sm; /* sm: 10 * major + minor */
    char           name[64];
    int            num_sms, driver_version;
    size_t         shared_bytes;       /* most shared memory that a thread block may use */
    int64_t        memory_bytes;       /* total memory of the GPU */
    cudaStream_t   stream;             /* the compute stream */
    cudaStream_t   side[STREAM_COUNT]; /* the other streams, created at first use */
    cudaEvent_t    marks[DEVICE_MARKS];
    CudaLibraries  lib;
    CudaGemmCache *gemm;
    CudaSdpaCache *sdpa;
    Comm          *comm;  /* NULL: one rank */
    CudaNccl      *nccl;  /* NULL: no collective uses NCCL */
    CudaPeers     *peers; /* NULL: no collective uses copies between GPUs */
    bool           gathers_by_copies, reduces_by_copies;
    bool           eager;   /* SUROGATE_CUDA_EAGER=1: waits for each launch, so that an error names its launch */
    char          *staging; /* pinned memory */
    cudaEvent_t    staging_free[CUDA_STAGING_PARTS];
    int            staging_part;
    size_t         staging_used; /* bytes used of the current part */
    Status         error;        /* sticky error; its text is `message` */
    char           message[1024];
} CudaDevice;

/* The program's messages and log, called from the plugin (host.c). */
typedef struct CudaHost CudaHost;
void                    cuda_host_set(const CudaHost *host);

/* Queues launches on their streams, with their waits. Work queued later waits for all of them (launch.c). */
NODISCARD Status cuda_launch_all(CudaDevice *cuda, const Launch *launches, int count);
/* Queues all launches on the compute stream. await_each: waits for each launch, so that an error names its launch. */
NODISCARD Status cuda_launch_in_turn(CudaDevice *cuda, const Launch *launches, int count, bool await_each);
/* Captures the launches into one CUDA graph. */
NODISCARD Status cuda_capture(CudaDevice *cuda, const Launch *launches, int count, cudaGraphExec_t *out);
/* DeviceApi.profile (profile.c). */
NODISCARD Status cuda_profile(CudaDevice *cuda, const Launch *launches, int count, double *seconds, double *out_overhead);

/* DeviceApi.profile_waits (launch.c). */
NODISCARD Status cuda_profile_waits(CudaDevice *cuda, const Launch *launches, int count, double *out_seconds);

/* Measures copies over each link, and writes a line for each (links.c). */
NODISCARD Status cuda_measure_links(CudaDevice *cuda, StrBuf *out);

extern const DeviceApi cuda_device_api;
