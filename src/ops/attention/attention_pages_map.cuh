/* How the copy engine (compute capability 9.0) lays out pages of a key/value cache in shared memory. A head's page consists of blocks: 128
 * bytes of each row, or whole rows if these are shorter. One box of the engine is a whole page, or one block. The 16-byte chunks of a row
 * are permuted by the row's index (tensor_map.h). C: the cache's element type (attention_cache.cuh). */
#pragma once

#include "device/cuda/tensor_map.h"
#include "ops/attention/attention_cache.cuh"

enum { PAGE = 32, TILE_PAGES = TILE_ROWS / PAGE, MOST_ROW_BYTES = TENSOR_MAP_INNER * 2 };

struct CacheMaps {
    CUtensorMap k, v; /* dims: columns of a block, cells, blocks, G; declared as 16-bit elements */
};

/* A tile of whole pages, one after the other. */
template <int D, typename C> struct PageTile {
    enum {
        HEAD_BYTES = D * (int)sizeof(C),
        ROW_BYTES = HEAD_BYTES < MOST_ROW_BYTES ? HEAD_BYTES : MOST_ROW_BYTES,
        BLOCK_BYTES = PAGE * ROW_BYTES,
        PAGE_BYTES = PAGE * HEAD_BYTES,
        BYTES = TILE_PAGES * PAGE_BYTES
    };

    /* The byte offset of a 16-byte chunk of a row in the tile. */
    static __device__ __forceinline__ int at(int row, int chunk)
    {
        enum { CHUNKS = ROW_BYTES / 16, LINE_ROWS = MOST_ROW_BYTES / ROW_BYTES };
        int place = (chunk % CHUNKS) ^ (row / LINE_ROWS % CHUNKS);
        return row / PAGE * PAGE_BYTES + chunk / CHUNKS * BLOCK_BYTES + row % PAGE * ROW_BYTES + place * 16;
    }
};

/* blocks: how many blocks a box contains. */
template <int D, typename C> static Status map_cache(const Heads &cache, const CachePages *pages, int heads, int blocks, CUtensorMap *out)
{
    typedef PageTile<D, C> Tile;
    TensorMapShape         shape = {.rank = 4};
    shape.dims[0] = Tile::ROW_BYTES / 2, shape.dims[1] = (uint64_t)pages->num_pages * PAGE;
    shape.dims[2] = Tile::HEAD_BYTES / Tile::ROW_BYTES, shape.dims[3] = heads;
    shape.strides[0] = cache.token_stride * sizeof(C), shape.strides[1] = Tile::ROW_BYTES, shape.strides[2] = Tile::HEAD_BYTES;
    shape.box[0] = Tile::ROW_BYTES / 2, shape.box[1] = PAGE, shape.box[2] = blocks, shape.box[3] = 1;
    return cuda_tensor_map(cache.data, &shape, out);
}

template <int D, typename C> static Status map_caches(const AttentionDims *a, int blocks, CacheMaps *out)
{
    Status status = map_cache<D, C>(a->k, &a->pages, a->num_kv_heads, blocks, &out->k);
    return status == OK ? map_cache<D, C>(a->v, &a->pages, a->num_kv_heads, blocks, &out->v) : status;
}
