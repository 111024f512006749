/* The plugin's device: one GPU, its streams, the libraries found. What GEMM and attention calls need of it. */
#pragma once

#include "device/cuda/libraries.h"
#include "device/device.h"

#include <cuda_runtime_api.h>

enum {
    CUDA_STAGING_BYTES = 8 << 20, /* of pinned memory for copies, in CUDA_STAGING_PARTS parts */
    CUDA_STAGING_PARTS = 4,
};

typedef struct CudaGemmCache CudaGemmCache; /* gemm.c */
typedef struct CudaSdpaCache CudaSdpaCache; /* sdpa.c */
typedef struct CudaNccl      CudaNccl;      /* nccl.c */
typedef struct CudaPeers     CudaPeers;     /* peer.c */

typedef struct CudaDevice {
    Device         base;
    int            index, sm; /* sm: 10 * major + minor */
    char           name[64];
    int            num_sms, driver_version;
    size_t         shared_bytes;       /* a block may ask for */
    int64_t        memory_bytes;       /* total */
    cudaStream_t   stream;             /* compute */
    cudaStream_t   side[STREAM_COUNT]; /* the others, made at first use */
    cudaEvent_t    marks[DEVICE_MARKS];
    CudaLibraries  lib;
    CudaGemmCache *gemm;
    CudaSdpaCache *sdpa;
    Comm          *comm;  /* NULL: one rank */
    CudaNccl      *nccl;  /* NULL: no collective goes by it */
    CudaPeers     *peers; /* the same */
    bool           gathers_by_copies, reduces_by_copies;
    bool           eager;   /* SUROGATE_CUDA_EAGER=1: each launch awaited, to name the one that fails */
    char          *staging; /* pinned */
    cudaEvent_t    staging_free[CUDA_STAGING_PARTS];
    int            staging_part;
    size_t         staging_used; /* of the current part */
    Status         error;        /* sticky, with its message */
    char           message[1024];
} CudaDevice;

/* Plugin-side messages (host.c). */
typedef struct CudaHost CudaHost;
void                    cuda_host_set(const CudaHost *host);
void                    cuda_host_log(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Queues launches on their streams, with their waits; what is queued after comes after all of them (launch.c). */
NODISCARD Status cuda_launch_all(CudaDevice *cuda, const Launch *launches, int count);
/* All on the compute stream, one after another; await_each: an error names its launch. */
NODISCARD Status cuda_launch_in_turn(CudaDevice *cuda, const Launch *launches, int count, bool await_each);
/* One CUDA graph of them. */
NODISCARD Status cuda_capture(CudaDevice *cuda, const Launch *launches, int count, cudaGraphExec_t *out);
/* DeviceApi.profile (profile.c). */
NODISCARD Status cuda_profile(CudaDevice *cuda, const Launch *launches, int count, double *seconds, double *out_overhead);

/* DeviceApi.profile_waits (launch.c). */
NODISCARD Status cuda_profile_waits(CudaDevice *cuda, const Launch *launches, int count, double *out_seconds);

/* Lines of what copies over each link reach (links.c). */
NODISCARD Status cuda_measure_links(CudaDevice *cuda, StrBuf *out);

extern const DeviceApi cuda_device_api;
