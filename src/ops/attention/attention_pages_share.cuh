/* Decoding over a key/value cache in pages: which tiles a row has, and how thread blocks share them. Which block computes a tile doesn't
 * change the bits of its sums. */
#pragma once

#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_tile.cuh"

enum { WARP_HEADS = 16 };

enum { SHARE_BLOCKS = 528 }; /* thread blocks that an H200 runs at a time */

/* Operands of decoding besides the cache. sums (B,H,tiles,D) and totals (B,H,tiles); tile 0 of a row is the first that it attends. */
typedef struct Decode {
    Heads     k, v; /* keys and values of the new tokens */
    HeadTurns turns;
    float    *sums;
    float2   *totals; /* largest score (before scaling), sum of exponentials */
    int       tiles;  /* the most tiles that a row may have */
    int       passes; /* passes over a group's heads, WARP_HEADS at a time */
    bool      shares; /* blocks take pieces of rows (Share); if a row is one piece, its block writes o */
    bool      early;  /* starts and pages are constant: the cache is read before earlier launches have ended */
} Decode;

/* The tiles that a row's token attends. count 0: the token doesn't fit into the row's pages. */
typedef struct RowTiles {
    int first_key, own, first, count;
} RowTiles;

static __device__ __forceinline__ RowTiles row_tiles(const AttentionDims &a, int b)
{
    if (!attention_has_room(a, b)) return {0, 0, 0, 0};
    int own = a.pages.starts[b], first_key = attention_first_key(a, b, 0, own), first = first_key / TILE_ROWS;
    return {first_key, own, first, own / TILE_ROWS - first + 1};
}

/* How blocks share a row: each head has `pieces` pieces of `len` tiles; the last piece may be shorter. */
typedef struct Share {
    int pieces, len;
} Share;

/* The most tiles that a piece may have: about `blocks` pieces of this size hold all tiles of all rows, for `heads` heads each. Called by
 * all lanes of a warp. If rows are about equally long and their heads alone fill the GPU, each row is one piece: no second kernel needs to
 * add sums. */
static __device__ __forceinline__ int share_quota(const AttentionDims &a, int heads, int blocks)
{
    int tiles = 0;
    for (int b = (int)(threadIdx.x & 31); b < a.batch; b += 32) tiles += row_tiles(a, b).count;
    return (__reduce_add_sync(0xFFFFFFFFu, tiles) * heads + blocks - 1) / blocks;
}

/* The share of a row of `count` tiles. Pieces begin at multiples of `unit` tiles. */
static __device__ __forceinline__ Share share_of(int count, int quota, int unit = 1)
{
    if (!count) return {0, 0};
    int pieces = (count + quota - 1) / quota, len = (count + pieces - 1) / pieces;
    len = (len + unit - 1) / unit * unit;
    return {(count + len - 1) / len, len};
}

/* Returns the row of piece number *piece, counted over all rows, and sets *piece to its number in that row. Returns a.batch if there is no
 * such piece. Called by all lanes of a warp. */
static __device__ __forceinline__ int share_row(const AttentionDims &a, int quota, int *piece, int unit = 1)
{
    int lane = (int)(threadIdx.x & 31);
    for (int base = 0; base < a.batch; base += 32) {
        int own = base + lane < a.batch ? share_of(row_tiles(a, base + lane).count, quota, unit).pieces : 0, sum = own;
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) {
            int before = __shfl_up_sync(0xFFFFFFFFu, sum, offset);
            if (lane >= offset) sum += before;
        }
        unsigned behind = __ballot_sync(0xFFFFFFFFu, sum > *piece);
        if (behind) {
            int at = __ffs((int)behind) - 1;
            *piece -= __shfl_sync(0xFFFFFFFFu, sum - own, at);
            return base + at;
        }
        *piece -= __shfl_sync(0xFFFFFFFFu, sum, 31);
    }
    return a.batch;
}
