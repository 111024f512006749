/* Reading keys and values of a paged cache into tiles of shared memory (TileOf), for the kernels on the matrix units. C is the cache's
 * element type, T the type of tiles. */
#pragma once

#include "ops/attention/attention_cache.cuh"

enum { NO_CELL = -1, NEW_CELL = -2 };

/* Finds the cell (position in the cache) of a key. A key outside [least, end) gets NO_CELL; key `own`, which isn't in the cache yet, gets
 * NEW_CELL. */
static __device__ __forceinline__ int find_cell(const AttentionDims &a, int b, int key, int least, int end, int own)
{
    return key < least || key >= end ? NO_CELL : key == own ? NEW_CELL : attention_cell(a.pages, b, key);
}

/* Stores a chunk of the cache in a tile's row, decoded to T. */
template <typename C, typename T> static __device__ __forceinline__ void put_chunk(T *to, const uint4 &chunk)
{
#pragma unroll
    for (int i = 0; i < 2 / (int)sizeof(C); i++) ((uint4 *)to)[i] = chunk_numbers<C, T>(chunk, i);
}

/* Begins to copy one head's keys, or values, at 32 positions to rows of a tile, with THREADS threads; e4m3 codes are decoded too, before it
 * returns. cell: the cell of this lane's position. NO_CELL: the row becomes zeros. NEW_CELL: the row is read at `fresh`, or skipped if
 * `fresh` is NULL. */
template <int D, int THREADS, typename C, typename T>
static __device__ __forceinline__ void load_half(T *rows, const Heads &cache, int cell, int g, const T *fresh)
{
    enum { N = ChunkOf<C>::N, CHUNKS = D / N, COUNT = 32 * CHUNKS };
    const C *base = (const C *)cache.data + (int64_t)g * D;
#pragma unroll 8
    for (int begin = 0; begin < COUNT; begin += THREADS) {
        int i = begin + (int)threadIdx.x;
        if (COUNT % THREADS && i >= COUNT) break; /* COUNT is a multiple of 32: whole warps leave */
        int row = i / CHUNKS, chunk = i % CHUNKS, at = __shfl_sync(0xFFFFFFFFu, cell, row);
        if (at == NEW_CELL && !fresh) continue;
        const C *from = base + max(at, 0) * cache.token_stride + chunk * N;
        T       *to = rows + row * TileOf<D>::STRIDE + chunk * N;
        if constexpr (sizeof(C) == sizeof(T)) {
            copy_async(to, at == NEW_CELL ? fresh + chunk * N : from, at != NO_CELL);
        } else {
            uint4 codes = make_uint4(0, 0, 0, 0);
            if (at == NEW_CELL)
                codes = cached_chunk<C, T>(fresh + chunk * N);
            else if (at != NO_CELL)
                codes = *(const uint4 *)from;
            put_chunk<C, T>(to, codes);
        }
    }
}
