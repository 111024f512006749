/* A CUDA kernel of an op as the plugin sees it. foo.cu launches kernels and ends with its rows:
 *     CUDA_KERNELS(foo, { .dtypes = DT_SET_FLOAT, .run = foo_rows, .name = "rows" })
 * which make the op's entry in the plugin's table (ops/cuda_table.c expands ops.def; an op without a .cu has no CUDA kernel; a .cu that
 * reads attributes includes ops/attrs.h itself). The first row that supports a node's dtypes, this GPU and `match` is taken, so the most
 * general row comes last.
 *
 * run() queues launches on args->stream and returns. It never allocates, synchronises, or copies to the host: it is captured into a CUDA
 * graph and replayed. Values that change from run to run (step, hyper, labels, position) are read by kernels from device memory. Sums
 * are in a fixed order: the same inputs give the same bits (no floating-point atomics). Bad indexes in data (a label or token out of
 * range) must not fault: kernels write NaN or skip as the CPU reference does. Dims are final. Kernels must accept any size that infer
 * allows, and are fast if rows are a multiple of 16 bytes. */
#pragma once

#ifdef __cplusplus
#define _Noreturn __attribute__((noreturn))
extern "C" {
#endif
#include "ir/op.h"
#ifdef __cplusplus
}
#endif

#include <cuda_runtime.h>

typedef struct CudaDevice CudaDevice; /* cuda.h */

typedef struct CudaKernel {
    DTypeSet    dtypes; /* for every operand that `except` doesn't name: see CpuKernel */
    int         min_sm; /* least compute capability, 10 * major + minor; 0: any */
    KernelFn    run;
    const char *name;
    size_t (*workspace)(const Node *node, CudaDevice *device); /* bytes of args->workspace; NULL: none */
    bool (*match)(const Node *node,
                  CudaDevice *device); /* whether it supports the node's shapes and attributes, with the libraries found; NULL: always */
    /* Called once for each launch, after allocation and before anything lasting is written. It may overwrite the launch's tensors,
     * allocate and synchronise (to measure algorithms or load kernels), and leaves the tensors zeroed. NULL: nothing to do. */
    Status (*prepare)(const KernelArgs *args);
    OperandTypes except[KERNEL_MAX_EXCEPT];
} CudaKernel;

typedef struct CudaKernelList {
    const CudaKernel *rows;
    int               count;
} CudaKernelList;

#define CUDA_KERNELS(op, ...) \
    static const CudaKernel         op##_rows_[] = {__VA_ARGS__}; \
    extern "C" const CudaKernelList cuda_kernels_##op; \
    const CudaKernelList            cuda_kernels_##op = {op##_rows_, (int)(sizeof op##_rows_ / sizeof op##_rows_[0])};

typedef struct CudaTableEntry {
    const char           *op;
    const CudaKernelList *kernels; /* NULL: the op has no CUDA kernel */
} CudaTableEntry;

/* The plugin's table of kernels, by op id (ops/cuda_table.c). */
#ifdef __cplusplus
extern "C" {
#endif
extern const CudaTableEntry cuda_kernel_table[];
extern const int            cuda_kernel_table_count;
#ifdef __cplusplus
}
#endif

/* ---- errors ---- */

#ifdef __cplusplus
extern "C" {
#endif
/* ERR_DEVICE with the error's name and text, or ERR_NO_FIT if memory ran out. */
Status cuda_failed(cudaError_t error, const char *what, const char *file, int line);
/* Most shared memory that a thread block may use on this GPU, in bytes. */
size_t cuda_shared_bytes(const CudaDevice *device);
int    cuda_sm(const CudaDevice *device); /* 10 * major + minor of its compute capability */
#ifdef __cplusplus
}
#endif

/* CudaKernel.workspace for ops whose descriptor has gpu_workspace, so that a plan without the GPU counts the same bytes. */
static inline size_t cuda_planned_workspace(const Node *node, CudaDevice *device)
{
    return node->op->gpu_workspace(node, cuda_sm(device));
}

#define CUDA_TRY(expr) \
    do { \
        cudaError_t cuda_error_ = (expr); \
        if (cuda_error_ != cudaSuccess) \
            return cuda_failed(cuda_error_, #expr, __FILE__, __LINE__), \
                   cuda_error_ == cudaErrorMemoryAllocation ? ERR_NO_FIT : ERR_DEVICE; \
    } while (0)

/* The result of run() after its last launch: `return CUDA_LAUNCHED();`. Faults inside a kernel show up at the next sync. */
#define CUDA_LAUNCHED() cuda_launched_(__FILE__, __LINE__)
static inline Status cuda_launched_(const char *file, int line)
{
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? OK : cuda_failed(error, "launch", file, line);
}

#ifdef __CUDACC__
/* Waits until earlier launches have ended. A kernel launched by cuda_launch_early calls it in every thread, before it reads or writes
 * memory that other launches write or read. */
static __device__ __forceinline__ void await_launches()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Lets the next launch begin, up to its await_launches, once every block has called this or ended. */
static __device__ __forceinline__ void release_launches()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Launches a kernel. With `early` its blocks may start while the previous launch still runs (programmatic dependent launch), if its
 * machine code has await_launches (sm_90 on). */
template <typename... P, typename... A>
static Status cuda_launch_early(bool early, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, cudaStream_t stream,
                                const A &...arguments)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t  config = {};
    cudaFuncAttributes  facts = {};
    if (early) CUDA_TRY(cudaFuncGetAttributes(&facts, kernel));
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = facts.ptxVersion >= 90;
    CUDA_TRY(cudaLaunchKernelEx(&config, kernel, (P)arguments...));
    return OK;
}
#endif

static inline cudaStream_t cuda_stream(const KernelArgs *args)
{
    return (cudaStream_t)args->stream;
}
static inline int64_t cuda_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Number of blocks for `count` items at `per_block` each, limited to enough for several times the largest GPU: kernels loop from
 * blockIdx.x in steps of gridDim.x. It depends only on the count, so that sums over blocks don't depend on the GPU. */
static inline unsigned cuda_grid(int64_t count, int64_t per_block)
{
    int64_t blocks = cuda_div_up(count, per_block);
    return (unsigned)(blocks < 1 ? 1 : blocks > 8192 ? 8192 : blocks);
}

/* Runs the statement with T as the C type of dtype bf16 or f32, the dtypes of training: CUDA_FLOAT(dtype, T, launch<T>(...)). */
#define CUDA_FLOAT(dtype, T, ...) \
    do { \
        if ((dtype) == DT_BF16) { \
            typedef __nv_bfloat16 T; \
            __VA_ARGS__; \
        } else { \
            typedef float T; \
            __VA_ARGS__; \
        } \
    } while (0)

/* CUDA_FLOAT with f16 too (vec_f16.cuh), for ops that are used in decoding, scoring and evaluation. */
#define CUDA_FLOAT_ANY(dtype, T, ...) \
    do { \
        if ((dtype) == DT_F16) { \
            typedef __half T; \
            __VA_ARGS__; \
        } else { \
            CUDA_FLOAT(dtype, T, __VA_ARGS__); \
        } \
    } while (0)
