/* Decoding over a key/value cache in pages by the copy engine (compute capability 9.0): the tiles and sums of pages_decode, to the bit, of
 * heads whose dim is a multiple of 64 and pages of PAGE tokens (attention_pages_map.cuh).
 *
 * A block has a piece of a row (Share) and a key/value head's query heads, 8 * HALVES at most. One warp brings tiles. Each of the others
 * makes the scores of 16 keys of a tile, and after an exchange of all scores the columns of o that are its own. Heads are the products'
 * n, 8 of them, keys and columns their m. What a cache in e4m3 has becomes T, bf16 or f16, in the registers of the warp that multiplies it.
 */
#pragma once

#include "ops/attention/attention_pages_map.cuh"
#include "ops/attention/attention_pages_share.cuh"
#include "ops/attention/qkv.cuh"
#include "ops/bulk.cuh"

enum { STRIPS = TILE_ROWS / 16, STRIP_THREADS = STRIPS * 32, BULK_THREADS = STRIP_THREADS + 32, SCORE_ROW = TILE_ROWS + 8 };

/* A block's shared memory: tiles, an exchange, phases. */
template <int D, int HALVES, typename C> struct PagedTile : PageTile<D, C> {
    enum {
        STAGES = (D <= 64 ? 6 : 3) * (2 / (int)sizeof(C)), /* tiles of keys and of values, in turn */
        SCORES = HALVES * 8 * SCORE_ROW,
        SCORE_BYTES = 2 * SCORES * (int)sizeof(float), /* of two tiles; before the first: turned heads and the new key */
        HEAD_ROW = D + 8,
        HEADS_BYTES = (HALVES * 8 + 1) * HEAD_ROW * 2,
        EXCHANGE_BYTES = SCORE_BYTES < HEADS_BYTES ? HEADS_BYTES : SCORE_BYTES,
        SHARED_BYTES = STAGES * PageTile<D, C>::BYTES + EXCHANGE_BYTES + 2 * STAGES * (int)sizeof(uint64_t)
    };
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

/* All warps but the one that brings tiles. */
static __device__ __forceinline__ void await_strips()
{
    asm volatile("bar.sync 1, %0;" ::"r"((int)STRIP_THREADS) : "memory");
}

/* Makes a piece's query heads and the new key ready, as qkv_norm_rope does, to the bit: a group of lanes has a head, a lane 8 columns. */
template <int D, typename T> struct Turner {
    enum { N = 8, LANES = D / N, GROUPS = STRIP_THREADS / LANES };
    QkvTableOf<N> table;
    float         wq[N], wk[N];
    int           lane, group;

    /* What is constant. */
    __device__ __forceinline__ Turner(const HeadTurns &h, int b) : lane(threadIdx.x % LANES), group(threadIdx.x / LANES)
    {
        table = load_table<LANES, N>(h.table, h.positions[b], h.table_len, lane);
        if (!h.wq) return;
        load_pack((const T *)h.wq + lane * N, wq);
        load_pack((const T *)h.wk + lane * N, wk);
    }

    /* Heads go to rows of `to`, the key behind the last. qkv: the packed row. */
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

/* A warp's part of a piece: the scores of 16 keys of each tile, and D / 4 columns of o. */
template <int D, int HALVES, typename T, typename C> struct Strip {
    typedef PagedTile<D, HALVES, C> Tile;
    enum { COLS = D / STRIPS, BLOCKS = COLS / 16, N = ChunkOf<C>::N, CHUNKS = COLS / N };
    static constexpr bool CODED = sizeof(C) == 1;
    int                   lane, warp;
    uint32_t              q[D / 16][2 * HALVES]; /* of two pairs of dims */
    uint4                 k, v;                  /* a chunk of the new key; of the new value, of this warp's columns */
    FoldedRow             row[HALVES];           /* of head lane / 4 */
    float                 o[BLOCKS][HALVES][4];  /* columns column(0), column(1) of each block, heads lane % 4 * 2 and the next */

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

    /* Query heads in rows of `row` numbers, and the new key. A lane's dims are those that ldmatrix gives it of keys: two pairs, 8 on, or
     * beside each other where four codes are a register. */
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

    /* What the launches in front make, when they have; all warps, with memory that they share. */
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

    /* The new key and value into their cell, which nobody reads in this launch. */
    __device__ __forceinline__ void append(const AttentionDims &a, const Piece &p) const
    {
        int64_t to = (int64_t)attention_cell(a.pages, p.b, p.row.own) * a.k.token_stride + (int64_t)p.g * D;
        if (lane < D / N && warp == 0) ((uint4 *)((C *)a.k.data + to))[lane] = k;
        if (lane < CHUNKS) ((uint4 *)((C *)a.v.data + to))[warp * CHUNKS + lane] = v;
    }

    /* Adds the products of 16 keys and dims [16i, 16i + 16). */
    __device__ __forceinline__ void add_products(float (&s)[HALVES][4], const uint32_t (&keys)[4], int i) const
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++) mma_of<T>(s[half], keys, q[i][2 * half], q[i][2 * half + 1]);
    }

    /* The scores of this warp's keys go to where all warps read them. own: the new token's row of the tile. */
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

    /* Adds the products of keys [16k, 16k + 16) and 16 columns. p: exponentials. */
    static __device__ __forceinline__ void add_values(float (&sum)[HALVES][4], const uint32_t (&values)[4], const uint32_t (&p)[4])
    {
#pragma unroll
        for (int half = 0; half < HALVES; half++) mma_of<T>(sum[half], values, p[half], p[2 + half]);
    }

    /* Sums of a tile's values. A register of codes has two columns of two keys: columns come in another order than from bf16. */
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

    /* This lane's columns, two of each block. */
    __device__ __forceinline__ int column(int i) const
    {
        return warp * COLS + (CODED ? i / 2 * 16 + lane / 4 * 2 + i % 2 : i * 8 + lane / 4);
    }

    /* Adds a tile, or takes it in place of those before. p: its exponentials. */
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
                float *to = d.sums + (at + head * d.tiles) * D;
#pragma unroll
                for (int i = 0; i < 2 * BLOCKS; i++) to[column(i)] = o[i / 2][half][i % 2 * 2 + e];
            }
        }
    }

    /* All of a row's keys are in it. */
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

/* By all warps but the one that brings tiles. */
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
        if (blockIdx.x == 0) await_launches(); /* in each launch somebody does */
        return;
    }
    if (threadIdx.x >= STRIP_THREADS)
        bring_tiles<D, HALVES, C>(ring, a, maps, piece);
    else
        attend_piece<D, CAP, HALVES, T, C>(ring, a, d, piece, scores);
}
