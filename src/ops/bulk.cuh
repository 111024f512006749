/* The copy engine of compute capability 9.0 copies boxes of a tensor map to shared memory; a phase (wgmma.cuh) is over when they have
 * arrived. Kernels that use it are launched on such GPUs only. */
#pragma once

#include "ops/wgmma.cuh"

/* Makes initialised phases visible to the copy engine. */
static __device__ __forceinline__ void publish_phases()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Makes the phase's one arrival; the phase then also waits for `bytes` copied bytes. */
static __device__ __forceinline__ void expect_bytes(uint64_t *phase, int bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(phase)), "r"(bytes) : "memory");
#endif
}

/* Begins to copy 16 bytes to an address of shared memory; writes zeros unless `there`. */
static __device__ __forceinline__ void copy_async_at(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

/* Arrives once at the phase, when all copies that this thread has begun by cp.async are complete. */
static __device__ __forceinline__ void copies_arrive(uint64_t *phase)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(phase)) : "memory");
}

static __device__ __forceinline__ void prefetch_map(const void *map)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

/* Begins to copy contiguous bytes; the count and both addresses are multiples of 16. The phase counts them when they arrive. */
static __device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, int bytes, uint64_t *phase)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(shared_address(phase))
                 : "memory");
#endif
}

/* Begins to copy the box at these indices, innermost first, to an address of shared memory. The phase counts its bytes, including zeros
 * outside the tensor. */
static __device__ __forceinline__ void copy_box(uint32_t to, const void *map, int i0, int i1, int i2, uint64_t *phase)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(i0), "r"(i1), "r"(i2), "r"(shared_address(phase))
                 : "memory");
#endif
}

static __device__ __forceinline__ void copy_box(uint32_t to, const void *map, int i0, int i1, int i2, int i3, uint64_t *phase)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(map), "r"(i0), "r"(i1), "r"(i2), "r"(i3), "r"(shared_address(phase))
        : "memory");
#endif
}
