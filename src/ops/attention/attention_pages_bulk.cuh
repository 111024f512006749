/* Decoding over a key/value cache in pages with the copy engine (compute capability 9.0). Tiles and sums are those of pages_decode, to the
 * bit. Serves head dims that are multiples of 64, and pages of PAGE tokens (attention_pages_map.cuh).
 *
 * A block has a piece of a row (Share) and a key/value head's query heads, 8 * HALVES at most. One warp copies tiles. Each of the other
 * warps computes the scores of 16 keys of a tile; the warps exchange all scores; then each computes its own columns of o. In these matrix
 * products 8 heads are the n dim, and keys or columns are the m dim. Elements of an e4m3 cache are decoded to T, bf16 or f16, in the
 * registers of the warp that multiplies them. */
#pragma once

#include "ops/attention/attention_pages_map.cuh"
#include "ops/attention/attention_pages_share.cuh"
#include "ops/attention/qkv.cuh"
#include "ops/bulk.cuh"

enum { STRIPS = TILE_ROWS / 16, STRIP_THREADS = STRIPS * 32, BULK_THREADS = STRIP_THREADS + 32, SCORE_ROW = TILE_ROWS + 8 };

/* A block's shared memory: tiles, then space to exchange scores, then barriers (phases). */
template <int D, int HALVES, typename C> struct PagedTile : PageTile<D, C> {
    enum {
        STAGES = (D <= 64 ? 6 : 3) * (2 / (int)sizeof(C)), /* a stage holds a tile of keys or of values, alternately */
        SCORES = HALVES * 8 * SCORE_ROW,
        SCORE_BYTES = 2 * SCORES * (int)sizeof(float), /* scores of two tiles; at first the rotated heads and the new key */
        HEAD_ROW = D + 8,
        HEADS_BYTES = (HALVES * 8 + 1) * HEAD_ROW * 2,
        EXCHANGE_BYTES = SCORE_BYTES < HEADS_BYTES ? HEADS_BYTES : SCORE_BYTES,
        SHARED_BYTES = STAGES * PageTile<D, C>::BYTES + EXCHANGE_BYTES + 2 * STAGES * (int)sizeof(uint64_t)
    };
};

/* The piece of a row that a block computes; b is a.batch if the block has none. Constructed by all lanes of a warp. */
struct Piece {
    RowTiles row;
    Share    share;
    int      b, g, pass, head, count; /* query heads [head, head + count) */
    int      tile, end, number;       /* tiles [tile, end) of the row; number: the piece's index in the row */

    __device__ __forceinline__ int key(int of) const
    {
        return (row.first + of) * TILE_ROWS;
    }

    __device__ __forceinline__ Piece(const AttentionDims &a, const Decode &d)
    {
        int heads = a.num_kv_heads * d.passes, h = (int)blockIdx.x % heads, quota = share_quota(a, heads, SHARE_BLOCKS);
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

/* A ring buffer of tiles, of keys and of values alternately. */
template <int D, int HALVES, typename C> struct TileRing {
    enum { STAGES = PagedTile<D, HALVES, C>::STAGES, BYTES = PagedTile<D, HALVES, C>::BYTES };
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

    /* Frees the stage for the next copy. Called by a warp that has read it. written: the warp also wrote to it; these become visible before
     * the copy engine writes. */
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

/* Whether a page contains attended keys, so that it must be copied. key: the first key of the page. */
static __device__ __forceinline__ bool page_is_read(const RowTiles &row, int key)
{
    return key + PAGE > row.first_key && key <= row.own;
}

/* Copies all tiles of a piece, each as soon as its stage is free. Called by one warp; each lane looks up one of 32 pages. */
template <int D, int HALVES, typename C>
static __device__ __forceinline__ void bring_tiles(TileRing<D, HALVES, C> &ring, const AttentionDims &a, const CacheMaps &maps,
                                                   const Piece &p)
{
    enum { PAGES = 32, PAGE_BYTES = PagedTile<D, HALVES, C>::PAGE_BYTES };
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

/* Barrier of all warps but the one that copies tiles. */
static __device__ __forceinline__ void await_strips()
{
    asm volatile("bar.sync 1, %0;" ::"r"((int)STRIP_THREADS) : "memory");
}

/* Normalizes and rotates a piece's query heads and the new key, with the same bits as qkv_norm_rope. A group of lanes has a head; a lane
 * has 8 columns of it. */
template <int D, typename T> struct Turner {
    enum { N = 8, LANES = D / N, GROUPS = STRIP_THREADS / LANES };
    QkvTableOf<N> table;
    float         wq[N], wk[N];
    int           lane, group;

    /* Loads the constant operands: table and weights. */
    __device__ __forceinline__ Turner(const HeadTurns &h, int b) : lane(threadIdx.x % LANES), group(threadIdx.x / LANES)
    {
        table = load_table<LANES, N>(h.table, h.positions[b], h.table_len, lane);
        if (!h.wq) return;
        load_pack((const T *)h.wq + lane * N, wq);
        load_pack((const T *)h.wk + lane * N, wk);
    }

    /* Query heads are written to rows of `to`, `row` elements apart; the key is written to the row after them. qkv: the packed row. */
    __device__ __forceinline__ void run(const HeadTurns &h, const T *qkv, int head, int count, int key_head, T *to, int row)
    {
        for (int base = 0; base <= count; base += GROUPS) {
            int     unit = base + group;
            Pack<T> pack;
            float   v[N];
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

/* One warp's part of a piece: the scores of 16 keys of each tile, and D / 4 columns of o. */
template <int D, int HALVES, typename T, typename C> struct Strip {
    typedef PagedTile<D, HALVES, C> Tile;
    enum { COLS = D / STRIPS, BLOCKS = COLS / 16, N = ChunkOf<C>::N, CHUNKS = COLS / N };
    static constexpr bool CODED = sizeof(C) == 1;
    int                   lane, warp;
    uint32_t              q[D / 16][2 * HALVES]; /* query heads: for each 16 dims a lane's two pairs of dims */
    uint4                 k, v;                  /* a chunk of the new key; a chunk of this warp's columns of the new value */
    FoldedRow             row[HALVES];           /* sums of head lane / 4 of each half */
    float                 o[BLOCKS][HALVES][4];  /* per block and half: two columns (see column) of heads 2 * (lane % 4) + 0 and + 1 */

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

    /* Loads query heads, `row` elements apart, and the new key. A lane loads the dims that ldmatrix gives it for keys: two pairs, 8 dims
     * apart; or two neighbouring pairs if a register holds four codes. */
    __device__ __forceinline__ void load(const T *heads, int64_t row, int count, const T *new_k)
    {
        const T *from = heads + lane / 4 * row + lane % 4 * (CODED ? 4 : 2);
        k = make_uint4(0, 0, 0, 0);
        if (lane < D / N) k = cached_chunk<C, T>(new_k + lane * N);
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int e = 0; e < 2 * HALVES; e++)
                q[i][e] = lane / 4 + e / 2 * 8 < count ? *(const uint32_t *)(from + e / 2 * 8 * row + i * 16 + e % 2 * (CODED ? 2 : 8)) : 0;
    }

    /* Waits for earlier launches, then loads their results. Called by all warps that multiply; they share the memory `shared`. */
    __device__ __forceinline__ void load(const AttentionDims &a, const Decode &d, const Piece &p, T *shared)
    {
        const T *qkv = (const T *)a.q.data + p.b * a.q.batch_stride;
        const T *new_k = (const T *)d.k.data + p.b * d.k.batch_stride + (int64_t)p.g * D;
        const T *new_v = (const T *)d.v.data + p.b * d.v.batch_stride + (int64_t)p.g * D;
        if (d.turns.table) {
            Turner<D, T> turner(d.turns, p.b);
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
        if (lane < CHUNKS) v = cached_chunk<C, T>(new_v + (warp * CHUNKS + lane) * N);
    }

    /* Writes the new key and value into their cell, which no block reads in this launch. */
    __device__ __forceinline__ void append(const AttentionDims &a, const Piece &p) const
    {
        int64_t to = (int64_t)attention_cell(a.pages, p.b, p.row.own) * a.k.token_stride + (int64_t)p.g * D;
        if (lane < D / N && warp == 0) ((uint4 *)((C *)a.k.data + to))[lane] = k;
        if (lane < CHUNKS) ((uint4 *)((C *)a.v.data + to))[warp * CHUNKS + lane] = v;
    }

    /* Adds the products of 16 keys with the query heads, over dims [16i, 16i + 16). */
    __device__ __forceinline__ void add_products(float (&s)[HALVES][4], const uint32_t (&keys)[4], int i) const
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++) mma_of<T>(s[half], keys, q[i][2 * half], q[i][2 * half + 1]);
    }

    /* Computes the scores of this warp's 16 keys and stores them where all warps read them. own: the new token's row in the tile. */
    __device__ __forceinline__ void make_scores(char *tile, float *scores, int own)
    {
        float    s[HALVES][4] = {};
        uint32_t from = shared_address(tile);
        if (own / 16 == warp) {
            if (lane < D / N) *(uint4 *)(tile + Tile::at(own, lane)) = k;
            __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < D / N / 2; i++) {
            uint32_t keys[4];
            ldmatrix_at(keys, from + Tile::at(warp * 16 + (lane & 15), i * 2 + lane / 16));
            if constexpr (CODED) {
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    uint2 top = e4m3_pairs<T>(keys[2 * part]), bottom = e4m3_pairs<T>(keys[2 * part + 1]);
                    add_products(s, {top.x, bottom.x, top.y, bottom.y}, 2 * i + part);
                }
            } else {
                add_products(s, keys, i);
            }
        }
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                scores[(half * 8 + lane % 4 * 2 + e % 2) * SCORE_ROW + warp * 16 + lane / 4 + e / 2 * 8] = s[half][e];
    }

    /* Reads all scores of heads lane / 4 and lane / 4 + 8, in pairs of keys. */
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

    /* Corrects the values of this warp's columns: keys outside [least, end) get zeros, because unattended values may be NaN, and the new
     * token's value is put into row `own`. */
    __device__ __forceinline__ void mend_values(char *tile, int least, int end, int own) const
    {
        for (int i = lane; i < TILE_ROWS * CHUNKS; i += 32) {
            int r = i / CHUNKS;
            if (r < least || r >= end) *(uint4 *)(tile + Tile::at(r, warp * CHUNKS + i % CHUNKS)) = make_uint4(0, 0, 0, 0);
        }
        if (own < TILE_ROWS && lane < CHUNKS) *(uint4 *)(tile + Tile::at(own, warp * CHUNKS + lane)) = v;
        __syncwarp();
    }

    /* Adds the products of keys [16k, 16k + 16) and 16 columns of values. p: the keys' exponentials. */
    static __device__ __forceinline__ void add_values(float (&sum)[HALVES][4], const uint32_t (&values)[4], const uint32_t (&p)[4])
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++) mma_of<T>(sum[half], values, p[half], p[2 + half]);
    }

    /* Computes a tile's sums of exponentials times values. A register of codes holds two columns of two keys, so a lane gets its columns in
     * another order than from 16-bit elements. */
    __device__ __forceinline__ void sum_values(float (&sum)[BLOCKS][HALVES][4], const char *tile, const uint32_t (&p)[4][4]) const
    {
        uint32_t from = shared_address(tile);
#pragma unroll
        for (int k = 0; k < 4; k += 1 + CODED)
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                uint32_t values[4];
                int      block = warp * BLOCKS + i;
                if constexpr (CODED) {
                    ldmatrix_trans_at(values, from + Tile::at(k * 16 + lane, block));
#pragma unroll
                    for (int part = 0; part < 2; part++) {
                        uint2 left = e4m3_crossed<T>(values[2 * part]), right = e4m3_crossed<T>(values[2 * part + 1]);
                        add_values(sum[i], {left.x, left.y, right.x, right.y}, p[k + part]);
                    }
                } else {
                    ldmatrix_trans_at(values, from + Tile::at(k * 16 + (lane & 7) + lane / 16 * 8, block * 2 + (lane >> 3 & 1)));
                    add_values(sum[i], values, p[k]);
                }
            }
    }

    /* The i-th of this lane's columns; each block has two. */
    __device__ __forceinline__ int column(int i) const
    {
        return warp * COLS + (CODED ? i / 2 * 16 + lane / 4 * 2 + i % 2 : i * 8 + lane / 4);
    }

    /* Adds a tile's sums; alone: they replace the sums so far. p: the tile's exponentials. */
    __device__ __forceinline__ void add(bool alone, const char        *tile, const uint32_t (&p)[4][4], const float (&most)[2],
                                        const float (&total)[2], float scale2)
    {
        float sum[BLOCKS][HALVES][4] = {};
        sum_values(sum, tile, p);
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

    /* Stores the sums in the workspace for combine_column, as the sums of tile `tile`. */
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
                float *to = d.sums + (at + head * d.tiles) * D;
#pragma unroll
                for (int i = 0; i < 2 * BLOCKS; i++) to[column(i)] = o[i / 2][half][i % 2 * 2 + e];
            }
        }
    }

    /* Stores the result; the piece must contain all of the row's keys. */
    __device__ __forceinline__ void store(const AttentionDims &a, const Piece &p, float factor) const
    {
        T *out = (T *)a.o.data + p.b * a.o.batch_stride + (int64_t)p.head * D;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            float end = fold_end(a, p.head + min(half * 8 + lane / 4, p.count - 1), factor, row[half]);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int   head = half * 8 + lane % 4 * 2 + e;
                float scale = __shfl_sync(0xFFFFFFFFu, end, (lane % 4 * 2 + e) * 4);
                if (head >= p.count) continue;
#pragma unroll
                for (int i = 0; i < 2 * BLOCKS; i++) out[head * D + column(i)] = from_float<T>(o[i / 2][half][i % 2 * 2 + e] * scale);
            }
        }
    }
};

/* Computes a piece. Called by all warps but the one that copies tiles. */
template <int D, bool CAP, int HALVES, typename T, typename C>
static __device__ __forceinline__ void attend_piece(TileRing<D, HALVES, C> &ring, const AttentionDims &a, const Decode &d,
                                                    const Piece &piece, float *scores)
{
    Strip<D, HALVES, T, C> strip;
    const ScoreOf<CAP>     score(a);
    const int              own = piece.row.own, least = piece.row.first_key, last[2] = {own, own}, first[2] = {least, least};
    strip.load(a, d, piece, (T *)scores);
    if (piece.end == piece.row.count && piece.pass == 0) strip.append(a, piece);
    for (int tile = piece.tile; tile < piece.end; tile++) {
        int   key = piece.key(tile);
        bool  whole = key >= least && key + TILE_ROWS <= own;
        float s[8][4], most[2], total[2], *exchange = scores + tile % 2 * PagedTile<D, HALVES, C>::SCORES;
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
        as_left<T>(p, s);
        ring.await_full();
        if (!whole) strip.mend_values(ring.tile(), least - key, own - key + 1, own - key);
        strip.add(piece.number != 0, ring.tile(), p, most, total, tile_scale(score.factor));
        ring.release(!whole);
        ring.next();
        if (piece.number) strip.leave(a, d, piece, tile);
    }
    if (piece.share.pieces == 1)
        strip.store(a, piece, score.factor);
    else if (!piece.number)
        strip.leave(a, d, piece, 0);
}

template <int D, bool CAP, int HALVES, typename T, typename C>
static __global__ void __launch_bounds__(BULK_THREADS, D <= 128 && HALVES == 1 ? 4 : 1)
    pages_decode_bulk(AttentionDims a, Decode d, const __grid_constant__ CacheMaps maps)
{
    typedef PagedTile<D, HALVES, C> Tile;
    extern __shared__ __align__(1024) char paged_memory[];
    float                                 *scores = (float *)(paged_memory + Tile::STAGES * Tile::BYTES);
    TileRing<D, HALVES, C>                 ring(paged_memory, (char *)scores + Tile::EXCHANGE_BYTES);

    release_launches();
    if (!d.early) await_launches();
    const Piece piece(a, d);
    __syncthreads();
    if (piece.b == a.batch) {
        if (blockIdx.x == 0) await_launches(); /* at least one block of a launch must wait for earlier launches */
        return;
    }
    if (threadIdx.x >= STRIP_THREADS)
        bring_tiles<D, HALVES, C>(ring, a, maps, piece);
    else
        attend_piece<D, CAP, HALVES, T, C>(ring, a, d, piece, scores);
}
