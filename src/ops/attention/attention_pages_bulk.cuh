/* Decoding over a key/value cache in pages by the copy engine (compute capability 9.0): the tiles and sums of pages_decode, to the bit, of
 * heads whose dim is a multiple of 64 and pages of PAGE tokens. A page of a head comes as a box: blocks of 64 columns, in each a row of 128
 * bytes a token, whose 16-byte chunks are permuted by row (tensor_map.h).
 *
 * A block has a piece of a row (Share) and a key/value head's query heads, 8 * HALVES at most. One warp brings tiles. Each of the others
 * makes the scores of 16 keys of a tile, and after an exchange of all scores the columns of o that are its own. Heads are the products'
 * n, 8 of them, keys and columns their m. */
#pragma once

#include "device/cuda/tensor_map.h"
#include "ops/attention/attention_pages_share.cuh"
#include "ops/attention/qkv.cuh"
#include "ops/bulk.cuh"

enum { PAGE = 32, TILE_PAGES = TILE_ROWS / PAGE, BLOCK_COLS = TENSOR_MAP_INNER, BLOCK_ROW = BLOCK_COLS * 2 };
enum { STRIPS = TILE_ROWS / 16, STRIP_THREADS = STRIPS * 32, BULK_THREADS = STRIP_THREADS + 32, SCORE_ROW = TILE_ROWS + 8 };

struct CacheMaps {
    CUtensorMap k, v; /* (64, cells, D / 64, G) */
};

template <int D, int HALVES> struct PagedTile {
    enum {
        BLOCK_BYTES = PAGE * BLOCK_ROW,
        PAGE_BYTES = D / BLOCK_COLS * BLOCK_BYTES,
        BYTES = TILE_PAGES * PAGE_BYTES,
        STAGES = D <= 64 ? 6 : 3, /* tiles of keys and of values, in turn */
        SCORES = HALVES * 8 * SCORE_ROW,
        SCORE_BYTES = 2 * SCORES * (int)sizeof(float), /* of two tiles; before the first: turned heads and the new key */
        HEAD_ROW = D + 8,
        HEAD_BYTES = (HALVES * 8 + 1) * HEAD_ROW * 2,
        EXCHANGE_BYTES = SCORE_BYTES < HEAD_BYTES ? HEAD_BYTES : SCORE_BYTES,
        SHARED_BYTES = STAGES * BYTES + EXCHANGE_BYTES + 2 * STAGES * (int)sizeof(uint64_t)
    };

    /* Where 16 bytes of a row lie. */
    static __device__ __forceinline__ int at(int row, int chunk)
    {
        return row / PAGE * PAGE_BYTES + chunk / 8 * BLOCK_BYTES + row % PAGE * BLOCK_ROW + ((chunk % 8) ^ (row % 8)) * 16;
    }
};

/* A block's piece; b is a.batch where there are fewer. By all lanes of a warp. */
struct Piece {
    RowTiles row;
    Share    share;
    int      b, g, pass, head, count; /* query heads [head, head + count) */
    int      tile, end, number;       /* tiles of the row; which of its pieces */

    __device__ __forceinline__ int key(int of) const
    {
        return (row.first + of) * TILE_ROWS;
    }

    __device__ __forceinline__ Piece(const AttentionDims &a, const Decode &d)
    {
        int heads = a.num_kv_heads * d.passes, h = (int)blockIdx.x % heads, quota = share_quota(a, d);
        number = (int)blockIdx.x / heads;
        g = h / d.passes, pass = h % d.passes, head = g * a.group + pass * WARP_HEADS;
        count = min((int)WARP_HEADS, a.group - pass * WARP_HEADS);
        b = share_row(a, quota, &number);
        if (b == a.batch) return;
        row = row_tiles(a, b);
        share = share_of(row.count, quota);
        tile = number * share.len;
        end = min(row.count, tile + share.len);
    }
};

/* Tiles of keys and values, in turn, come to a ring of places. */
template <int D, int HALVES> struct TileRing {
    enum { STAGES = PagedTile<D, HALVES>::STAGES, BYTES = PagedTile<D, HALVES>::BYTES };
    char     *tiles;
    uint64_t *full, *empty;
    int       stage = 0, parity = 0;

    __device__ __forceinline__ TileRing(char *memory, char *phases) : tiles(memory), full((uint64_t *)phases), empty(full + STAGES)
    {
        if (threadIdx.x) return;
        for (int i = 0; i < STAGES; i++) {
            phases_init(full + i, 1);
            phases_init(empty + i, STRIPS);
        }
        publish_phases();
    }

    __device__ __forceinline__ char *tile() const
    {
        return tiles + stage * BYTES;
    }
    __device__ __forceinline__ void await_full() const
    {
        phase_wait(full + stage, parity);
    }
    __device__ __forceinline__ void await_empty() const
    {
        phase_wait(empty + stage, parity ^ 1);
    }

    /* By a warp that has read the place. written: and has written to it; that comes before the engine's writes. */
    __device__ __forceinline__ void release(bool written) const
    {
        if (written) publish_tiles();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) phase_arrive(empty + stage);
    }

    __device__ __forceinline__ void next()
    {
        if (++stage < STAGES) return;
        stage = 0;
        parity ^= 1;
    }
};

/* Whether a page has keys that are attended, the first of the page being number `key`. Others aren't brought. */
static __device__ __forceinline__ bool page_is_read(const RowTiles &row, int key)
{
    return key + PAGE > row.first_key && key <= row.own;
}

/* By one warp: all tiles of a piece, each as soon as its place is free. A lane looks up one of 32 pages. */
template <int D, int HALVES>
static __device__ __forceinline__ void bring_tiles(TileRing<D, HALVES> &ring, const AttentionDims &a, const CacheMaps &maps, const Piece &p)
{
    enum { PAGES = 32, PAGE_BYTES = PagedTile<D, HALVES>::PAGE_BYTES };
    int lane = threadIdx.x & 31, cell = 0;
    for (int i = 0; i < 2 * (p.end - p.tile); i++, ring.next()) {
        int key = p.key(p.tile + i / 2), page = i / 2 * TILE_PAGES % PAGES, bytes = 0;
        if (i % (2 * PAGES / TILE_PAGES) == 0 && page_is_read(p.row, key + lane * PAGE))
            cell = attention_cell(a.pages, p.b, key + lane * PAGE);
        ring.await_empty();
#pragma unroll
        for (int k = 0; k < TILE_PAGES; k++) bytes += page_is_read(p.row, key + k * PAGE) ? PAGE_BYTES : 0;
        if (lane == 0) expect_bytes(ring.full + ring.stage, bytes);
#pragma unroll
        for (int k = 0; k < TILE_PAGES; k++) {
            int first = __shfl_sync(0xFFFFFFFFu, cell, page + k);
            if (lane == 0 && page_is_read(p.row, key + k * PAGE))
                copy_box(shared_address(ring.tile()) + k * PAGE_BYTES, i % 2 ? &maps.v : &maps.k, 0, first, 0, p.g, ring.full + ring.stage);
        }
    }
}

/* All warps but the one that brings tiles. */
static __device__ __forceinline__ void await_strips()
{
    asm volatile("bar.sync 1, %0;" ::"r"((int)STRIP_THREADS) : "memory");
}

/* Makes a piece's query heads and the new key ready, as qkv_norm_rope does, to the bit: a group of lanes has a head, a lane 8 columns. */
template <int D> struct Turner {
    enum { N = 8, LANES = D / N, GROUPS = STRIP_THREADS / LANES };
    QkvTableOf<N> table;
    float         wq[N], wk[N];
    int           lane, group;

    /* What is constant. */
    __device__ __forceinline__ Turner(const HeadTurns &h, int b) : lane(threadIdx.x % LANES), group(threadIdx.x / LANES)
    {
        table = load_table<LANES, N>(h.table, h.positions[b], h.table_len, lane);
        if (!h.wq) return;
        load_pack(h.wq + lane * N, wq);
        load_pack(h.wk + lane * N, wk);
    }

    /* Heads go to rows of `to`, the key behind the last. qkv: the packed row. */
    __device__ __forceinline__ void run(const HeadTurns &h, const bf16 *qkv, int head, int count, int key_head, bf16 *to, int row)
    {
        for (int base = 0; base <= count; base += GROUPS) {
            int        unit = base + group;
            Pack<bf16> pack;
            float      v[N];
            if (unit <= count) pack.words = *(const uint4 *)(qkv + (unit < count ? head + unit : key_head) * D + lane * N);
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = to_float(pack.v[k]);
            if (h.wq) {
                float sum = 0;
#pragma unroll
                for (int k = 0; k < N; k++) sum += v[k] * v[k];
                float rstd = rsqrtf(group_sum<LANES>(sum) / (float)D + h.eps);
#pragma unroll
                for (int k = 0; k < N; k++) v[k] = ((unit < count ? wq[k] : wk[k]) + h.offset) * (v[k] * rstd);
            }
            turn<LANES, N>(v, table, lane, 1.0f);
            if (unit <= count) store_pack(to + unit * row + lane * N, v);
        }
    }
};

/* A warp's part of a piece: the scores of 16 keys of each tile, and D / 4 columns of o. */
template <int D, int HALVES> struct Strip {
    typedef PagedTile<D, HALVES> Tile;
    enum { COLS = D / STRIPS, BLOCKS = COLS / 16, CHUNKS = COLS / 8 };
    int       lane, warp;
    uint32_t  q[D / 16][2 * HALVES]; /* of a pair of dims */
    uint4     k, v;                  /* a chunk of the new key; of the new value, of this warp's columns */
    FoldedRow row[HALVES];           /* of head lane / 4 */
    float     o[BLOCKS][HALVES][4];  /* columns lane / 4 and 8 on, heads lane % 4 * 2 and the next */

    __device__ __forceinline__ Strip() : lane(threadIdx.x & 31), warp(threadIdx.x >> 5)
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++) row[half] = {-INFINITY, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[i][half][e] = 0;
    }

    /* Query heads in rows of `row` numbers, and the new key. */
    __device__ __forceinline__ void load(const bf16 *heads, int64_t row, int count, const bf16 *new_k)
    {
        const bf16 *from = heads + lane / 4 * row + lane % 4 * 2;
        k = make_uint4(0, 0, 0, 0);
        if (lane < D / 8) k = ((const uint4 *)new_k)[lane];
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int e = 0; e < 2 * HALVES; e++)
                q[i][e] = lane / 4 + e / 2 * 8 < count ? *(const uint32_t *)(from + e / 2 * 8 * row + i * 16 + e % 2 * 8) : 0;
    }

    /* What the launches in front make, when they have; all warps, with memory that they share. */
    __device__ __forceinline__ void load(const AttentionDims &a, const Decode &d, const Piece &p, bf16 *shared)
    {
        const bf16 *qkv = (const bf16 *)a.q.data + p.b * a.q.batch_stride;
        const bf16 *new_k = (const bf16 *)d.k.data + p.b * d.k.batch_stride + (int64_t)p.g * D;
        const bf16 *new_v = (const bf16 *)d.v.data + p.b * d.v.batch_stride + (int64_t)p.g * D;
        if (d.turns.table) {
            Turner<D> turner(d.turns, p.b);
            await_launches();
            turner.run(d.turns, qkv, p.head, p.count, a.num_heads + p.g, shared, Tile::HEAD_ROW);
            await_strips();
            load(shared, Tile::HEAD_ROW, p.count, shared + p.count * Tile::HEAD_ROW);
            await_strips();
        } else {
            await_launches();
            load(qkv + p.head * D, D, p.count, new_k);
        }
        v = make_uint4(0, 0, 0, 0);
        if (lane < CHUNKS) v = ((const uint4 *)new_v)[warp * CHUNKS + lane];
    }

    /* The new key and value into their cell, which nobody reads in this launch. */
    __device__ __forceinline__ void append(const AttentionDims &a, const Piece &p) const
    {
        int64_t to = (int64_t)attention_cell(a.pages, p.b, p.row.own) * a.k.token_stride + (int64_t)p.g * D;
        if (lane < D / 8 && warp == 0) ((uint4 *)((bf16 *)a.k.data + to))[lane] = k;
        if (lane < CHUNKS) ((uint4 *)((bf16 *)a.v.data + to))[warp * CHUNKS + lane] = v;
    }

    /* The scores of this warp's keys go to where all warps read them. own: the new token's row of the tile. */
    __device__ __forceinline__ void make_scores(char *tile, float *scores, int own)
    {
        float    s[HALVES][4] = {};
        uint32_t from = shared_address(tile) + warp / 2 * Tile::PAGE_BYTES + (warp % 2 * 16 + (lane & 15)) * BLOCK_ROW;
        if (own / 16 == warp) {
            if (lane < D / 8) *(uint4 *)(tile + Tile::at(own, lane)) = k;
            __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t keys[4];
            ldmatrix_at(keys, from + i / 4 * Tile::BLOCK_BYTES + ((i % 4 * 2 + lane / 16) ^ (lane & 7)) * 16);
#pragma unroll
            for (int half = 0; half < HALVES; half++) mma(s[half], keys, q[i][2 * half], q[i][2 * half + 1]);
        }
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                scores[(half * 8 + lane % 4 * 2 + e % 2) * SCORE_ROW + warp * 16 + lane / 4 + e / 2 * 8] = s[half][e];
    }

    /* All scores of heads lane / 4 and 8 on, of pairs of keys. */
    static __device__ __forceinline__ void read_scores(float (&s)[8][4], const float *scores)
    {
        int lane = threadIdx.x & 31;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 pair = make_float2(0, 0);
                if (half < HALVES) pair = *(const float2 *)(scores + (half * 8 + lane / 4) * SCORE_ROW + n * 8 + lane % 4 * 2);
                s[n][2 * half] = pair.x, s[n][2 * half + 1] = pair.y;
            }
    }

    /* Values of this warp's columns: those of keys outside [least, end) become zeros, as what nobody attends may be no number; the new
     * token's is put where it belongs. */
    __device__ __forceinline__ void mend_values(char *tile, int least, int end, int own) const
    {
        for (int i = lane; i < TILE_ROWS * CHUNKS; i += 32) {
            int r = i / CHUNKS;
            if (r < least || r >= end) *(uint4 *)(tile + Tile::at(r, warp * CHUNKS + i % CHUNKS)) = make_uint4(0, 0, 0, 0);
        }
        if (own < TILE_ROWS && lane < CHUNKS) *(uint4 *)(tile + Tile::at(own, warp * CHUNKS + lane)) = v;
        __syncwarp();
    }

    /* Adds a tile, or takes it in place of those before. p: its exponentials. */
    __device__ __forceinline__ void add(bool alone, const char        *tile, const uint32_t (&p)[4][4], const float (&most)[2],
                                        const float (&total)[2], float scale2)
    {
        float    sum[BLOCKS][HALVES][4] = {};
        uint32_t from = shared_address(tile) + ((lane & 7) + lane / 16 * 8) * BLOCK_ROW;
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                uint32_t values[4];
                int      chunk = (warp * BLOCKS + i) * 2;
                ldmatrix_trans_at(values, from + chunk / 8 * Tile::BLOCK_BYTES + k / 2 * Tile::PAGE_BYTES + k % 2 * 16 * BLOCK_ROW +
                                              ((chunk % 8 + (lane >> 3 & 1)) ^ (lane & 7)) * 16);
#pragma unroll
                for (int half = 0; half < HALVES; half++) mma(sum[i][half], values, p[k][half], p[k][2 + half]);
            }
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            bool any = fold_tile(row[half], most[half], total[half], scale2);
            if (alone) row[half] = {most[half], total[half], 0, 0};
            unsigned heads = __ballot_sync(0xFFFFFFFFu, any);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int       of = (lane % 4 * 2 + e) * 4;
                FoldedRow folded = {0, 0, __shfl_sync(0xFFFFFFFFu, row[half].shrink, of), __shfl_sync(0xFFFFFFFFu, row[half].grow, of)};
#pragma unroll
                for (int i = 0; i < 2 * BLOCKS; i++) {
                    float &to = o[i / 2][half][i % 2 * 2 + e], fresh = sum[i / 2][half][i % 2 * 2 + e];
                    if (alone)
                        to = fresh;
                    else if (heads >> of & 1)
                        to = fold_sum(folded, to, fresh);
                }
            }
        }
    }

    /* For combine_column, as tile `tile`. */
    __device__ __forceinline__ void leave(const AttentionDims &a, const Decode &d, const Piece &p, int tile) const
    {
        int64_t at = ((int64_t)p.b * a.num_heads + p.head) * d.tiles + tile;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            int head = half * 8 + lane / 4;
            if (head < p.count && lane % 4 == 0 && warp == 0) d.totals[at + head * d.tiles] = make_float2(row[half].most, row[half].total);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                head = half * 8 + lane % 4 * 2 + e;
                if (head >= p.count) continue;
                float *to = d.sums + (at + head * d.tiles) * D + warp * COLS + lane / 4;
#pragma unroll
                for (int i = 0; i < 2 * BLOCKS; i++) to[i * 8] = o[i / 2][half][i % 2 * 2 + e];
            }
        }
    }

    /* All of a row's keys are in it. */
    __device__ __forceinline__ void store(const AttentionDims &a, const Piece &p) const
    {
        bf16 *out = (bf16 *)a.o.data + p.b * a.o.batch_stride + (int64_t)p.head * D + warp * COLS + lane / 4;
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int   head = half * 8 + lane % 4 * 2 + e;
                float scale = 1.0f / __shfl_sync(0xFFFFFFFFu, row[half].total, (lane % 4 * 2 + e) * 4);
                if (head >= p.count) continue;
#pragma unroll
                for (int i = 0; i < 2 * BLOCKS; i++) out[head * D + i * 8] = __float2bfloat16_rn(o[i / 2][half][i % 2 * 2 + e] * scale);
            }
    }
};

/* By all warps but the one that brings tiles. */
template <int D, bool CAP, int HALVES>
static __device__ __forceinline__ void attend_piece(TileRing<D, HALVES> &ring, const AttentionDims &a, const Decode &d, const Piece &piece,
                                                    float *scores)
{
    Strip<D, HALVES>   strip;
    const ScoreOf<CAP> score(a);
    const int          own = piece.row.own, least = piece.row.first_key, last[2] = {own, own}, first[2] = {least, least};
    strip.load(a, d, piece, (bf16 *)scores);
    for (int tile = piece.tile; tile < piece.end; tile++) {
        int   key = piece.key(tile);
        bool  whole = key >= least && key + TILE_ROWS <= own;
        float s[8][4], most[2], total[2], *exchange = scores + tile % 2 * PagedTile<D, HALVES>::SCORES;
        ring.await_full();
        strip.make_scores(ring.tile(), exchange, own - key);
        ring.release(!whole);
        ring.next();
        await_strips();
        strip.read_scores(s, exchange);
        if (whole)
            softmax_tile<false, HALVES>(s, most, total, score, key, last, first);
        else
            softmax_tile<true, HALVES>(s, most, total, score, key, last, first);
        uint32_t p[4][4];
        as_left(p, s);
        ring.await_full();
        if (!whole) strip.mend_values(ring.tile(), least - key, own - key + 1, own - key);
        strip.add(piece.number != 0, ring.tile(), p, most, total, tile_scale(score.factor));
        ring.release(!whole);
        ring.next();
        if (piece.number) strip.leave(a, d, piece, tile);
    }
    if (piece.end == piece.row.count && piece.pass == 0) strip.append(a, piece); /* before the tiles, it would wait for the value */
    if (piece.share.pieces == 1)
        strip.store(a, piece);
    else if (!piece.number)
        strip.leave(a, d, piece, 0);
}

template <int D, bool CAP, int HALVES>
static __global__ void __launch_bounds__(BULK_THREADS, D <= 128 && HALVES == 1 ? 4 : 1)
    pages_decode_bulk(AttentionDims a, Decode d, const __grid_constant__ CacheMaps maps)
{
    typedef PagedTile<D, HALVES> Tile;
    extern __shared__ __align__(1024) char paged_memory[];
    float                                 *scores = (float *)(paged_memory + Tile::STAGES * Tile::BYTES);
    TileRing<D, HALVES>                    ring(paged_memory, (char *)scores + Tile::EXCHANGE_BYTES);

    release_launches();
    if (!d.early) await_launches();
    const Piece piece(a, d);
    __syncthreads();
    if (piece.b == a.batch) {
        if (blockIdx.x == 0) await_launches(); /* in each launch somebody does */
        return;
    }
    if (threadIdx.x >= STRIP_THREADS)
        bring_tiles<D, HALVES>(ring, a, maps, piece);
    else
        attend_piece<D, CAP, HALVES>(ring, a, d, piece, scores);
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
