/* Decoding over a key/value cache in pages by the copy engine (compute capability 9.0): the tiles and sums of pages_decode, to the bit, of
 * heads whose dim is a multiple of 64 and pages of PAGE tokens. A page of a head comes as a box: blocks of 64 columns, in each a row of 128
 * bytes a token, whose 16-byte chunks are permuted by row (tensor_map.h). */
#pragma once

#include "device/cuda/tensor_map.h"
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_tile.cuh"
#include "ops/bulk.cuh"

enum { PAGE = 32, TILE_PAGES = TILE_ROWS / PAGE, BLOCK_COLS = TENSOR_MAP_INNER, BLOCK_ROW = BLOCK_COLS * 2 };

struct CacheMaps {
    CUtensorMap k, v; /* (64, cells, D / 64, G) */
};

template <int D> struct PagedTile {
    enum {
        BLOCK_BYTES = PAGE * BLOCK_ROW,
        PAGE_BYTES = D / BLOCK_COLS * BLOCK_BYTES,
        BYTES = TILE_PAGES * PAGE_BYTES,
        SHARED_BYTES = 2 * BYTES + 1024 /* keys, values, what their phases need */
    };

    /* Where 16 bytes of a row lie. */
    static __device__ __forceinline__ int at(int row, int chunk)
    {
        return row / PAGE * PAGE_BYTES + chunk / 8 * BLOCK_BYTES + row % PAGE * BLOCK_ROW + ((chunk % 8) ^ (row % 8)) * 16;
    }
};

/* The pages of a tile that hold keys [least, end), by one lane; page 0 for the others. */
struct TilePages {
    int first[TILE_PAGES]; /* cell of the first token */

    __device__ __forceinline__ TilePages() : first{} {}
    __device__ __forceinline__ TilePages(const CachePages &p, int b, int key, int least, int end)
    {
#pragma unroll
        for (int i = 0; i < TILE_PAGES; i++) {
            int position = key + i * PAGE;
            first[i] = position + PAGE <= least || position >= end ? 0 : attention_cell(p, b, position);
        }
    }
};

/* By one lane. */
template <int D>
static __device__ __forceinline__ void bring_tile(uint32_t tile, const CUtensorMap *map, const TilePages &pages, int g, uint64_t *phase)
{
    expect_bytes(phase, PagedTile<D>::BYTES);
#pragma unroll
    for (int i = 0; i < TILE_PAGES; i++) copy_box(tile + i * PagedTile<D>::PAGE_BYTES, map, 0, pages.first[i], 0, g, phase);
}

/* Where a lane reads of keys (rows along n) and of values (rows along k), by pairs of chunks of a block. */
struct PagedReads {
    uint32_t k[4], v[4];

    __device__ __forceinline__ PagedReads(uint32_t k_tile, uint32_t v_tile)
    {
        int lane = threadIdx.x & 31, k_row = (lane & 7) + (lane >> 4) * 8, v_row = (lane & 7) + (lane >> 3 & 1) * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            k[i] = k_tile + k_row * BLOCK_ROW + ((i * 2 + (lane >> 3 & 1)) ^ (lane & 7)) * 16;
            v[i] = v_tile + v_row * BLOCK_ROW + ((i * 2 + (lane >> 4)) ^ (lane & 7)) * 16;
        }
    }
};

/* mma_transposed of all columns. */
template <int D>
static __device__ __forceinline__ void paged_scores(float (&s)[8][4], const uint32_t (&q)[D / 16][4], const PagedReads &reads)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            ldmatrix_at(b, reads.k[k % 4] + k / 4 * PagedTile<D>::BLOCK_BYTES + n / 2 * PagedTile<D>::PAGE_BYTES + n % 2 * 16 * BLOCK_ROW);
            mma(s[2 * n], q[k], b[0], b[1]);
            mma(s[2 * n + 1], q[k], b[2], b[3]);
        }
}

/* mma_straight of a block of columns. */
template <int D>
static __device__ __forceinline__ void paged_values(float (&sum)[8][4], const uint32_t (&p)[4][4], const PagedReads &reads, int block)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            ldmatrix_trans_at(b,
                              reads.v[n] + block * PagedTile<D>::BLOCK_BYTES + k / 2 * PagedTile<D>::PAGE_BYTES + k % 2 * 16 * BLOCK_ROW);
            mma(sum[2 * n], p[k], b[0], b[1]);
            mma(sum[2 * n + 1], p[k], b[2], b[3]);
        }
}

/* Values of keys outside [least, end) become zeros: what nobody attends may be no number. */
template <int D> static __device__ __forceinline__ void clear_values(char *tile, int least, int end)
{
    enum { CHUNKS = D / 8 };
    int lane = threadIdx.x & 31;
    for (int i = lane; i < least * CHUNKS; i += 32) *(uint4 *)(tile + PagedTile<D>::at(i / CHUNKS, i % CHUNKS)) = make_uint4(0, 0, 0, 0);
    for (int i = end * CHUNKS + lane; i < TILE_ROWS * CHUNKS; i += 32)
        *(uint4 *)(tile + PagedTile<D>::at(i / CHUNKS, i % CHUNKS)) = make_uint4(0, 0, 0, 0);
}

/* The new token's key and value of one head: 16 bytes a lane, of D / 8 lanes. */
template <int D> struct NewToken {
    uint4 k, v;

    __device__ __forceinline__ NewToken(const Decode &d, int b, int g)
    {
        int lane = threadIdx.x & 31;
        k = v = make_uint4(0, 0, 0, 0);
        if (lane >= D / 8) return;
        k = ((const uint4 *)((const bf16 *)d.k.data + b * d.k.batch_stride + (int64_t)g * D))[lane];
        v = ((const uint4 *)((const bf16 *)d.v.data + b * d.v.batch_stride + (int64_t)g * D))[lane];
    }

    /* Into its cell. */
    __device__ __forceinline__ void append(const AttentionDims &a, int b, int own, int g) const
    {
        int     lane = threadIdx.x & 31;
        int64_t to = (int64_t)attention_cell(a.pages, b, own) * a.k.token_stride + (int64_t)g * D;
        if (lane >= D / 8) return;
        ((uint4 *)((bf16 *)a.k.data + to))[lane] = k;
        ((uint4 *)((bf16 *)a.v.data + to))[lane] = v;
    }

    static __device__ __forceinline__ void put(char *tile, int row, const uint4 &part)
    {
        int lane = threadIdx.x & 31;
        if (lane < D / 8) *(uint4 *)(tile + PagedTile<D>::at(row, lane)) = part;
    }
};

/* store_tile's sums of a block of 64 columns. */
template <int HALVES> static __device__ __forceinline__ void store_sums(float *to, int64_t stride, int count, const float (&sum)[8][4])
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        if ((lane >> 2) + half * 8 >= count) continue;
        float *row = to + ((lane >> 2) + half * 8) * stride + (lane & 3) * 2;
#pragma unroll
        for (int n = 0; n < 8; n++) *(float2 *)(row + n * 8) = make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
    }
}

/* A block is one warp: a row, a key/value head, at most 8 * HALVES of its query heads, and every gridDim.x'th tile. What it reads next is
 * on its way as soon as its place is free. */
template <int D, bool CAP, int HALVES>
static __global__ void __launch_bounds__(32) pages_decode_bulk(AttentionDims a, Decode d, const __grid_constant__ CacheMaps maps)
{
    extern __shared__ __align__(1024) char paged_memory[];
    char                                  *k_tile = paged_memory, *v_tile = k_tile + PagedTile<D>::BYTES;
    uint64_t                              *k_phase = (uint64_t *)(v_tile + PagedTile<D>::BYTES), *v_phase = k_phase + 1;
    int b = blockIdx.z, g = (int)blockIdx.y / d.passes, pass = (int)blockIdx.y % d.passes, tile = blockIdx.x, lane = threadIdx.x;
    int head = g * a.group + pass * WARP_HEADS, count = min(WARP_HEADS, a.group - pass * WARP_HEADS);

    release_launches();
    if (!d.early) await_launches();
    const RowTiles row = row_tiles(a, b);
    if (tile >= row.count) {
        if (tile == 0) await_launches(); /* in each launch somebody does */
        return;
    }
    int  key = (row.first + tile) * TILE_ROWS, step = (int)gridDim.x * TILE_ROWS, parity = 0;
    auto pages_at = [&](int key) { return TilePages(a.pages, b, key, row.first_key, row.own + 1); };
    if (lane == 0) {
        phases_init(k_phase, 1);
        phases_init(v_phase, 1);
        publish_phases();
        TilePages pages = pages_at(key);
        bring_tile<D>(shared_address(k_tile), &maps.k, pages, g, k_phase);
        bring_tile<D>(shared_address(v_tile), &maps.v, pages, g, v_phase);
    }
    __syncwarp();
    await_launches();
    const NewToken<D> token(d, b, g);
    uint32_t          q[D / 16][4];
    load_heads<D>(q, a.q, b, head, count);
    /* Nobody reads the new cell in this launch. */
    if (tile == 0 && pass == 0) token.append(a, b, row.own, g);

    const PagedReads   reads(shared_address(k_tile), shared_address(v_tile));
    const ScoreOf<CAP> score(a);
    const int          last[2] = {row.own, row.own}, first[2] = {row.first_key, row.first_key};
    for (; tile < row.count; tile += gridDim.x, key += step, parity ^= 1) {
        bool      goes_on = tile + (int)gridDim.x < row.count, whole = key >= row.first_key && key + TILE_ROWS <= row.own;
        float     s[8][4] = {}, most[2], total[2];
        TilePages next;
        if (goes_on && lane == 0) next = pages_at(key + step);
        phase_wait(k_phase, parity);
        if (row.own - key < TILE_ROWS) token.put(k_tile, row.own - key, token.k);
        __syncwarp();
        paged_scores<D>(s, q, reads);
        if (!whole) publish_tiles(); /* the token's writes come before the engine's */
        __syncwarp();
        if (goes_on && lane == 0) bring_tile<D>(shared_address(k_tile), &maps.k, next, g, k_phase);
        if (whole)
            softmax_tile<false, HALVES>(s, most, total, score, key, last, first);
        else
            softmax_tile<true, HALVES>(s, most, total, score, key, last, first);
        uint32_t p[4][4];
        as_left(p, s);
        phase_wait(v_phase, parity);
        if (!whole) clear_values<D>(v_tile, row.first_key - key, min(row.own - key + 1, (int)TILE_ROWS));
        if (row.own - key < TILE_ROWS) token.put(v_tile, row.own - key, token.v);
        __syncwarp();
        int64_t at = ((int64_t)b * a.num_heads + head) * d.tiles + tile;
        for (int half = 0; half < HALVES; half++)
            if ((lane >> 2) + half * 8 < count && (lane & 3) == 0)
                d.totals[at + ((lane >> 2) + half * 8) * d.tiles] = make_float2(most[half], total[half]);
#pragma unroll
        for (int block = 0; block < D / BLOCK_COLS; block++) {
            float sum[8][4] = {};
            paged_values<D>(sum, p, reads, block);
            store_sums<HALVES>(d.sums + at * D + block * BLOCK_COLS, (int64_t)d.tiles * D, count, sum);
        }
        if (!whole) publish_tiles();
        __syncwarp();
        if (goes_on && lane == 0) bring_tile<D>(shared_address(v_tile), &maps.v, next, g, v_phase);
    }
}

static Status map_cache(const Heads &cache, const AttentionDims *a, CUtensorMap *out)
{
    TensorMapShape shape = {.rank = 4};
    shape.dims[0] = BLOCK_COLS, shape.dims[1] = (uint64_t)a->pages.num_pages * a->pages.page_len, shape.dims[2] = a->dim / BLOCK_COLS;
    shape.dims[3] = a->num_kv_heads;
    shape.strides[0] = cache.token_stride * sizeof(bf16), shape.strides[1] = BLOCK_ROW, shape.strides[2] = a->dim * sizeof(bf16);
    shape.box[0] = BLOCK_COLS, shape.box[1] = PAGE, shape.box[2] = a->dim / BLOCK_COLS, shape.box[3] = 1;
    return cuda_tensor_map(cache.data, &shape, out);
}
