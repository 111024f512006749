/* Decoding over a key/value cache in pages: which tiles a row has, and how blocks share them. Who makes a tile's sums doesn't change their
 * bits. */
#pragma once

#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_tile.cuh"

enum { WARP_HEADS = 16 };

enum { SHARE_BLOCKS = 528 }; /* that H200 has at a time */

/* What decoding has beside the cache. sums (B,H,tiles,D) and totals (B,H,tiles), a row's tiles counted from the first that it attends. */
typedef struct Decode {
    Heads     k, v; /* of the new tokens */
    HeadTurns turns;
    float    *sums;
    float2   *totals; /* largest raw score, total */
    int       tiles;  /* most of a row */
    int       passes; /* over a group's heads */
    bool      shares; /* blocks have shares of rows (Share), and what one has all of goes to o */
    bool      early;  /* starts and pages are constant: what lies in the cache is loaded before the launches in front have ended */
} Decode;

/* The tiles that a row's token attends. count 0: it has no place. */
typedef struct RowTiles {
    int first_key, own, first, count;
} RowTiles;

static __device__ __forceinline__ RowTiles row_tiles(const AttentionDims &a, int b)
{
    if (!attention_has_room(a, b)) return {0, 0, 0, 0};
    int own = a.pages.starts[b], first_key = attention_first_key(a, b, 0, own), first = first_key / TILE_ROWS;
    return {first_key, own, first, own / TILE_ROWS - first + 1};
}

/* How blocks share a row: `pieces` of them for each of its heads, all of `len` tiles but the last. */
typedef struct Share {
    int pieces, len;
} Share;

/* The most tiles of a piece, by all lanes of a warp: all blocks that fit at a time have about the same. Rows of about the same length stay
 * whole where their heads are blocks enough: nobody needs to add their sums then. */
static __device__ __forceinline__ int share_quota(const AttentionDims &a, const Decode &d)
{
    int heads = a.num_kv_heads * d.passes, tiles = 0;
    for (int b = (int)(threadIdx.x & 31); b < a.batch; b += 32) tiles += row_tiles(a, b).count;
    return (__reduce_add_sync(0xFFFFFFFFu, tiles) * heads + SHARE_BLOCKS - 1) / SHARE_BLOCKS;
}

/* Of a row of `count` tiles. */
static __device__ __forceinline__ Share share_of(int count, int quota)
{
    int pieces = count ? (count + quota - 1) / quota : 0;
    return {pieces, count ? (count + pieces - 1) / pieces : 0};
}

/* The row whose piece number `piece`, counted over all rows, is; piece becomes that of the row. a.batch: there is none. By all lanes. */
static __device__ __forceinline__ int share_row(const AttentionDims &a, int quota, int *piece)
{
    int lane = (int)(threadIdx.x & 31);
    for (int base = 0; base < a.batch; base += 32) {
        int own = base + lane < a.batch ? share_of(row_tiles(a, base + lane).count, quota).pieces : 0, sum = own;
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
