/* The largest number of a thread block. */
#pragma once

#include "device/cuda/vec.cuh"

/* Every thread of the block, which has THREADS, gets the largest `most`. The block may call it again at once. */
template <int THREADS> static __device__ __forceinline__ uint32_t block_most(uint32_t most)
{
    __shared__ uint32_t of_warp[THREADS / 32];
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) most = max(most, of_warp[i]);
    __syncthreads(); /* before the next call's numbers are written */
    return most;
}
