/* Pages of a key/value cache as the copy engine (compute capability 9.0) brings them, a page of a head by one box or a box for each of its
 * blocks: 128 bytes of all rows, or whole rows where they have less. The 16-byte chunks of a row are permuted by where it lies
 * (tensor_map.h). C: what the cache has (attention_cache.cuh). */
#pragma once

#include "device/cuda/tensor_map.h"
#include "ops/attention/attention_cache.cuh"

enum { PAGE = 32, TILE_PAGES = TILE_ROWS / PAGE, MOST_ROW_BYTES = TENSOR_MAP_INNER * 2 };

struct CacheMaps {
    CUtensorMap k, v; /* (a block's columns, cells, blocks, G), as if of 16 bits */
};

/* A tile of whole pages, one behind the other. */
template <int D, typename C> struct PageTile {
    enum {
        HEAD_BYTES = D * (int)sizeof(C),
        ROW_BYTES = HEAD_BYTES < MOST_ROW_BYTES ? HEAD_BYTES : MOST_ROW_BYTES,
        BLOCK_BYTES = PAGE * ROW_BYTES,
        PAGE_BYTES = PAGE * HEAD_BYTES,
        BYTES = TILE_PAGES * PAGE_BYTES
    };

    /* Where 16 bytes of a row lie. */
    static __device__ __forceinline__ int at(int row, int chunk)
    {
        enum { CHUNKS = ROW_BYTES / 16, LINE_ROWS = MOST_ROW_BYTES / ROW_BYTES };
        int place = (chunk % CHUNKS) ^ (row / LINE_ROWS % CHUNKS);
        return row / PAGE * PAGE_BYTES + chunk / CHUNKS * BLOCK_BYTES + row % PAGE * ROW_BYTES + place * 16;
    }
};

/* blocks: of a box. */
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
