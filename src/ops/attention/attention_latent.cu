/* attention_latent on the matrix units and, for any dims and fp32, on the vector units. A row whose positions are outside its pages writes
 * nothing and gives NaN. (The program checks positions before it runs.)
 *
 * Matrix units: the queries of a row, T tokens of H heads, follow each other in memory and share all keys, so ROWS of them are the rows of
 * a tile. Keys are divided into tiles of 64. A tile is 64 rows of D numbers in shared memory; its values are the first V columns, so each
 * key is read once. All warps compute scores, PARTS warps for the same 16 queries. These warps exchange their scores in shared memory; then
 * each of them sums COLS columns of values.
 *
 * A query's bits don't depend on what is computed beside it: each tile's sums start from zero; fold_tile adds the sums of a chunk's tiles
 * in order, then the chunks' sums. If rows have one token, blocks share them (attention_pages_share.cuh): a block has a piece of one row's
 * tiles. It stores the sums of each chunk, or of each tile if pieces are shorter, in the workspace; a second kernel adds them. */
#include "ops/attention/attention_latent.h"

#include "device/cuda/vec_f16.cuh"
#include "ops/attention/attention_cells.cuh"
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_pages.h"
#include "ops/attention/attention_pages_share.cuh"
#include "ops/attention/attention_tile.cuh"

enum { LATENT_WARPS = 8, LATENT_THREADS = LATENT_WARPS * 32, HALF_ROWS = 32 };

/* Shared memory of a block: ROWS queries, a ring of SLOTS half tiles, and the scores of a tile. */
template <int D, int V, int ROWS> struct LatentTile {
    enum {
        PARTS = LATENT_WARPS / (ROWS / 16),
        KEYS = TILE_ROWS / PARTS,
        COLS = V / PARTS,
        SLOTS = ROWS == 16 ? 5 : 4,
        STRIDE = TileOf<D>::STRIDE,
        HALF = HALF_ROWS * STRIDE,
        SCORES_STRIDE = TILE_ROWS + 8,
        BYTES = (ROWS * STRIDE + SLOTS * HALF) * 2 + ROWS * SCORES_STRIDE * (int)sizeof(float)
    };
};

/* Operands besides dims and cache. In the workspace: sums (slots,H,V) and totals (slots,H). */
typedef struct LatentJob {
    Heads   k; /* the new tokens' keys */
    float  *sums;
    float2 *totals;        /* largest score (before scaling), sum of exponentials */
    int     passes;        /* number of blocks that share a row's queries */
    bool    shares, early; /* shares: rows have one token; early: starts and pages are constant */
} LatentJob;

/* The work of a block: up to ROWS queries, and `count` tiles of their keys. */
typedef struct LatentPiece {
    int  b, query, queries; /* b: the row; query: the first query, counted over tokens and heads; queries: how many queries */
    int  tile, count;       /* tile: the first tile; count: how many tiles */
    int  slot, unit;        /* slot: the first slot of the row's sums; unit: how many tiles a slot sums up */
    bool whole;             /* the piece has all tiles of its queries, so no sums go to the workspace */
} LatentPiece;

/* How many tiles are summed up before their sums are stored in the workspace. */
static __device__ __forceinline__ int latent_unit(int quota)
{
    return quota < LATENT_CHUNK ? 1 : LATENT_CHUNK;
}

/* How many slots the rows before row b have. Called by all lanes of a warp. */
static __device__ __forceinline__ int slots_before(const AttentionDims &a, int b, int unit)
{
    int slots = 0;
    for (int i = (int)(threadIdx.x & 31); i < b; i += 32) slots += (row_tiles(a, i).count + unit - 1) / unit;
    return __reduce_add_sync(0xFFFFFFFFu, slots);
}

/* Returns false if there is no piece for this block. */
template <int ROWS> static __device__ __forceinline__ bool find_piece(const AttentionDims &a, const LatentJob &d, LatentPiece &piece)
{
    piece.unit = LATENT_CHUNK, piece.slot = 0, piece.whole = true, piece.tile = 0;
    if (!d.shares) { /* blocks with the most keys begin first */
        int query = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, queries = min(ROWS, a.len * a.num_heads - query);
        piece.b = blockIdx.y, piece.query = query, piece.queries = queries;
        int last = attention_has_room(a, piece.b) ? a.pages.starts[piece.b] + (query + queries - 1) / a.num_heads : -1;
        piece.count = (last + TILE_ROWS) / TILE_ROWS;
        return true;
    }
    int number = (int)blockIdx.x / d.passes, quota = share_quota(a, d.passes, LATENT_BLOCKS);
    piece.unit = latent_unit(quota);
    piece.b = share_row(a, quota, &number, piece.unit);
    if (piece.b == a.batch) return false;
    int   count = row_tiles(a, piece.b).count;
    Share share = share_of(count, quota, piece.unit);
    piece.query = (int)blockIdx.x % d.passes * ROWS, piece.queries = min(ROWS, a.num_heads - piece.query);
    piece.tile = number * share.len, piece.count = min(share.len, count - piece.tile);
    piece.whole = share.pieces == 1;
    if (piece.whole) piece.unit = LATENT_CHUNK;
    piece.slot = slots_before(a, piece.b, piece.unit);
    return true;
}

/* Adds to s the scores of 16 queries and KEYS keys. q: the queries' rows, keys: the keys' rows of a half tile. A score is the sum of two
 * chains, each over half of D. */
template <int D, int KEYS, typename T>
static __device__ __forceinline__ void latent_scores(float (&s)[2][KEYS / 8][4], const T *q, const T *keys)
{
    enum { PAIRS = D / 32, FIRST = (PAIRS + 1) / 2 };
    int      lane = threadIdx.x & 31;
    const T *b_row = keys + (lane & 7) * TileOf<D>::STRIDE + (lane >> 3) * 8;
#pragma unroll 3
    for (int pair = 0; pair < FIRST; pair++)
#pragma unroll
        for (int chain = 0; chain < 2; chain++) {
            int      p = pair + chain * FIRST;
            uint32_t left[2][4];
            if (PAIRS % 2 && p >= PAIRS) continue;
            load_left<D>(left[0], q, 0, p * 32);
            load_left<D>(left[1], q, 0, p * 32 + 16);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                uint32_t b[4];
                ldmatrix(b, b_row + n * 8 * TileOf<D>::STRIDE + p * 32);
                mma_of<T>(s[chain][n], left[0], b[0], b[1]);
                mma_of<T>(s[chain][n], left[1], b[2], b[3]);
            }
        }
}

/* c (16 x C) = p (16 x 64) times C columns of a tile's halves. */
template <int D, int C, typename T>
static __device__ __forceinline__ void latent_values(float (&c)[C / 8][4], const uint32_t (&p)[4][4], const T *const (&halves)[2], int col)
{
    int lane = threadIdx.x & 31, at = ((lane & 7) + ((lane >> 3) & 1) * 8) * TileOf<D>::STRIDE + ((lane >> 4) & 1) * 8 + col;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < C / 16; n++) {
            uint32_t b[4];
            ldmatrix_trans(b, halves[k / 2] + at + k % 2 * 16 * TileOf<D>::STRIDE + n * 16);
            mma_of<T>(c[2 * n], p[k], b[0], b[1]);
            mma_of<T>(c[2 * n + 1], p[k], b[2], b[3]);
        }
}

/* A warp's sums of 16 queries over some tiles, in COLS columns of values. Each lane has two of the queries. */
template <int COLS> struct LatentSums {
    FoldedRow row[2];
    float     o[COLS / 8][4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int half = 0; half < 2; half++) row[half] = {-INFINITY, 0, 0, 0};
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[n][e] = 0;
    }

    __device__ __forceinline__ void add(const LatentSums &more, float scale2)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (!fold_tile(row[half], more.row[half].most, more.row[half].total, scale2)) continue;
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) o[n][e] = fold_sum(row[half], o[n][e], more.o[n][e]);
        }
    }

    /* p: a tile's exponentials. halves: the tile's keys; columns of values begin at column `col` of the keys. */
    template <int D, typename T>
    __device__ __forceinline__ void add_tile(const uint32_t (&p)[4][4], const float (&most)[2], const float (&total)[2],
                                             const T *const (&halves)[2], int col, float scale2)
    {
        enum { N = 32 };
        bool any[2];
#pragma unroll
        for (int half = 0; half < 2; half++) any[half] = fold_tile(row[half], most[half], total[half], scale2);
#pragma unroll
        for (int at = 0; at < COLS; at += N) {
            float sum[N / 8][4] = {};
            latent_values<D, N>(sum, p, halves, col + at);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (any[e >> 1]) o[at / 8 + n][e] = fold_sum(row[e >> 1], o[at / 8 + n][e], sum[n][e]);
        }
    }

    /* Stores the sums of queries below `queries` in a slot. head: index of the slot's query 0; query, col: this lane's first query and
     * column. */
    __device__ __forceinline__ void leave(const LatentJob &d, int64_t head, int query, int queries, int dim, int col) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (query + half * 8 >= queries) continue;
            int64_t at = head + query + half * 8;
            if (col == 0) d.totals[at] = make_float2(row[half].most, row[half].total);
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                *(float2 *)(d.sums + at * dim + col + n * 8) = make_float2(o[n][2 * half], o[n][2 * half + 1]);
        }
    }

    template <typename T> __device__ __forceinline__ void store(T *to, const float (&scale)[2], int query, int queries, int dim) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (query + half * 8 >= queries) continue;
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                *(uint32_t *)(to + (int64_t)(query + half * 8) * dim + n * 8) =
                    pair_of<T>(o[n][2 * half] * scale[half], o[n][2 * half + 1] * scale[half]);
        }
    }
};

/* Loads half tiles of a row's keys into the ring. */
template <int D, int V, int ROWS, typename T, typename C> struct LatentRing {
    typedef LatentTile<D, V, ROWS> Tile;
    T                             *slots;
    int b, key, end, own, halves; /* key: the first key; own: a key that isn't in the cache yet, or -1; halves: how many half tiles */

    __device__ __forceinline__ T *half(int i) const
    {
        return slots + i % Tile::SLOTS * Tile::HALF;
    }

    __device__ __forceinline__ void load(const AttentionDims &a, int i, const T *fresh) const
    {
        if (i >= halves) return;
        int cell = find_cell(a, b, key + i * HALF_ROWS + (int)(threadIdx.x & 31), 0, end, own);
        load_half<D, LATENT_THREADS, C, T>(half(i), a.k, cell, 0, fresh);
    }

    /* Writes the new key into its row, if that row is in the first `loaded` half tiles. */
    __device__ __forceinline__ void put_new(int loaded, const T *fresh) const
    {
        enum { N = ChunkOf<C>::N };
        int row = own - key;
        if (row < 0 || row >= loaded * HALF_ROWS) return;
        T *to = half(row / HALF_ROWS) + row % HALF_ROWS * Tile::STRIDE;
        for (int i = threadIdx.x * N; i < D; i += LATENT_THREADS * N) put_chunk<C, T>(to + i, cached_chunk<C, T>(fresh + i));
    }
};

template <int D, int V, int ROWS, typename T, typename C>
static __global__ void __launch_bounds__(LATENT_THREADS, 1) latent_tiles(AttentionDims a, LatentJob d)
{
    typedef LatentTile<D, V, ROWS> Tile;
    extern __shared__ uint4        shared[];
    enum { AHEAD = Tile::SLOTS - 2 };
    T          *q_tile = (T *)shared, *slots = q_tile + ROWS * Tile::STRIDE;
    float      *scores = (float *)(slots + Tile::SLOTS * Tile::HALF);
    int         lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp / Tile::PARTS, part = warp % Tile::PARTS;
    LatentPiece piece;

    release_launches();
    if (!d.early) await_launches();
    if (!find_piece<ROWS>(a, d, piece)) {
        if (blockIdx.x == 0) await_launches(); /* at least one block of a launch must wait for earlier launches */
        return;
    }
    int                                start = piece.count ? a.pages.starts[piece.b] : 0, key = piece.tile * TILE_ROWS;
    int                                end = start + (piece.queries + piece.query - 1) / a.num_heads + 1;
    const T                           *fresh = (const T *)d.k.data + piece.b * d.k.batch_stride;
    const LatentRing<D, V, ROWS, T, C> ring = {slots, piece.b, key, end, d.shares ? start : -1, 2 * piece.count};
    ring.load(a, 0, NULL);
    copy_commit();
    ring.load(a, 1, NULL);
    copy_commit();
    await_launches();
    ring.put_new(2, fresh);
    const T *q = (const T *)a.q.data + piece.b * a.q.batch_stride + (int64_t)piece.query * D;
    for (int i = threadIdx.x; i < ROWS * (D / 8); i += LATENT_THREADS) {
        int row = i / (D / 8), chunk = i % (D / 8);
        copy_async(q_tile + row * Tile::STRIDE + chunk * 8, q + (row < piece.queries ? row : 0) * (int64_t)D + chunk * 8,
                   row < piece.queries);
    }
    copy_commit();
    for (int i = 2; i < AHEAD; i++) {
        ring.load(a, i, fresh);
        copy_commit();
    }
    /* No block reads the new cell in this launch. */
    if (d.shares && piece.query == 0 && start / TILE_ROWS - piece.tile < piece.count && start >= key)
        for (int i = threadIdx.x * ChunkOf<C>::N; i < D; i += LATENT_THREADS * ChunkOf<C>::N)
            *(uint4 *)((C *)a.k.data + (int64_t)attention_cell(a.pages, piece.b, start) * a.k.token_stride + i) =
                cached_chunk<C, T>(fresh + i);

    const ScoreOf<false>   score(a);
    float                  scale2 = tile_scale(score.factor);
    int                    first[2] = {0, 0}, last[2], query = group * 16 + (lane >> 2), col = part * Tile::COLS;
    LatentSums<Tile::COLS> chunk, all;
    for (int half = 0; half < 2; half++) last[half] = start + min(piece.query + query + half * 8, a.len * a.num_heads - 1) / a.num_heads;
    all.clear();
    for (int i = 0; i < piece.count; i++, key += TILE_ROWS) {
        copy_wait<AHEAD - 2>();
        __syncthreads(); /* the tile has arrived, and all warps have read the previous tile */
        ring.load(a, 2 * i + AHEAD, fresh);
        copy_commit();
        ring.load(a, 2 * i + AHEAD + 1, fresh);
        copy_commit();
        const T *halves[2] = {ring.half(2 * i), ring.half(2 * i + 1)};
        float    parts[2][Tile::KEYS / 8][4] = {}, s[8][4], most[2], total[2];
        int      mine = part * Tile::KEYS;
        latent_scores<D, Tile::KEYS>(parts, q_tile + group * 16 * Tile::STRIDE, halves[mine / HALF_ROWS] + mine % HALF_ROWS * Tile::STRIDE);
#pragma unroll
        for (int n = 0; n < Tile::KEYS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float2 *)(scores + (query + half * 8) * Tile::SCORES_STRIDE + mine + n * 8 + (lane & 3) * 2) =
                    make_float2(__fadd_rn(parts[0][n][2 * half], parts[1][n][2 * half]),
                                __fadd_rn(parts[0][n][2 * half + 1], parts[1][n][2 * half + 1]));
        __syncthreads();
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 both = *(const float2 *)(scores + (query + half * 8) * Tile::SCORES_STRIDE + n * 8 + (lane & 3) * 2);
                s[n][2 * half] = both.x, s[n][2 * half + 1] = both.y;
            }
        if (key + TILE_ROWS > start)
            softmax_tile<true>(s, most, total, score, key, last, first);
        else
            softmax_tile<false>(s, most, total, score, key, last, first);
        uint32_t p[4][4];
        as_left<T>(p, s);
        int tile = piece.tile + i;
        if (tile % piece.unit == 0) chunk.clear();
        chunk.template add_tile<D>(p, most, total, halves, col, scale2);
        if ((tile + 1) % piece.unit && i + 1 < piece.count) continue;
        if (piece.whole)
            all.add(chunk, scale2);
        else
            chunk.leave(d, (int64_t)(piece.slot + tile / piece.unit) * a.num_heads + piece.query, query, piece.queries, V,
                        col + (lane & 3) * 2);
    }
    copy_wait<0>();
    if (!piece.whole) return;
    float scale[2] = {fold_end(a, 0, score.factor, all.row[0]), fold_end(a, 0, score.factor, all.row[1])};
    all.store((T *)a.o.data + piece.b * a.o.batch_stride + (int64_t)piece.query * V + col + (lane & 3) * 2, scale, query, piece.queries, V);
}

/* Adds up the partial sums of a row's pieces. A block has one head of one row; a thread has two columns. All sums of a chunk are loaded
 * before they are added. */
template <typename T> static __global__ void latent_combine(AttentionDims a, LatentJob d)
{
    release_launches();
    if (!d.early) await_launches();
    int   head = blockIdx.x, b = blockIdx.y, count = row_tiles(a, b).count, quota = share_quota(a, d.passes, LATENT_BLOCKS);
    int   unit = latent_unit(quota), slots = (count + unit - 1) / unit, group = LATENT_CHUNK / unit;
    Share share = share_of(count, quota, unit);
    if (share.pieces == 1) { /* the result is in o already */
        if (head == 0 && b == 0) await_launches();
        return;
    }
    int64_t at = (int64_t)slots_before(a, b, unit) * a.num_heads + head;
    if (d.early) await_launches();
    int       col = threadIdx.x * 2;
    float     scale2 = tile_scale(a.scale);
    FoldedRow row = {-INFINITY, 0, 0, 0};
    float2    o = {0, 0};
    for (int begin = 0; begin < slots; begin += group) {
        FoldedRow chunk = {-INFINITY, 0, 0, 0};
        float2    sum = {0, 0}, tops[LATENT_CHUNK], sums[LATENT_CHUNK];
#pragma unroll
        for (int i = 0; i < LATENT_CHUNK; i++) {
            bool    there = i < group && begin + i < slots;
            int64_t slot = at + (int64_t)(there ? begin + i : 0) * a.num_heads;
            tops[i] = there ? d.totals[slot] : make_float2(0, 0);
            sums[i] = there ? *(const float2 *)(d.sums + slot * a.v_dim + col) : make_float2(0, 0);
        }
#pragma unroll
        for (int i = 0; i < LATENT_CHUNK; i++)
            if (fold_tile(chunk, tops[i].x, tops[i].y, scale2))
                sum = make_float2(fold_sum(chunk, sum.x, sums[i].x), fold_sum(chunk, sum.y, sums[i].y));
        if (fold_tile(row, chunk.most, chunk.total, scale2)) o = make_float2(fold_sum(row, o.x, sum.x), fold_sum(row, o.y, sum.y));
    }
    float scale = fold_end(a, head, a.scale, row);
    *(uint32_t *)((T *)a.o.data + b * a.o.batch_stride + (int64_t)head * a.v_dim + col) = pair_of<T>(o.x * scale, o.y * scale);
}

/* ---- vector units ---- */

enum { SIMT_WARPS = 8, SIMT_THREADS = SIMT_WARPS * 32, SIMT_HEADS = 4, SIMT_KEYS = 64 };

static __device__ __forceinline__ float to_float(e4m3 code)
{
    return fp8_get(&code, DT_E4M3, 0);
}

static inline int simt_shared_bytes(int64_t dim, int64_t v_dim)
{
    return (int)(SIMT_HEADS * (dim + v_dim + SIMT_KEYS + 1) * sizeof(float) + SIMT_KEYS * sizeof(int));
}

/* A block has SIMT_HEADS heads of one query, and goes over the query's keys in tiles. Each warp computes the scores of some keys; then each
 * of the first SIMT_HEADS warps computes one head's softmax; then each thread sums some columns of the values. */
template <typename T, typename C> static __global__ void __launch_bounds__(SIMT_THREADS) latent_simt(AttentionDims a)
{
    extern __shared__ float floats[];
    float                  *q = floats, *o = q + SIMT_HEADS * a.dim, *s = o + SIMT_HEADS * a.v_dim, *factor = s + SIMT_HEADS * SIMT_KEYS;
    int                    *cells = (int *)(factor + SIMT_HEADS);
    int   lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.x * SIMT_HEADS, t = blockIdx.y, b = blockIdx.z;
    int   heads = min(SIMT_HEADS, a.num_heads - head), keys = attention_has_room(a, b) ? a.pages.starts[b] + t + 1 : 0;
    float most = -INFINITY, total = 0;
    for (int i = threadIdx.x; i < SIMT_HEADS * a.dim; i += SIMT_THREADS)
        q[i] = i < heads * a.dim ? to_float(((const T *)a.q.data)[b * a.q.batch_stride + t * a.q.token_stride + (int64_t)head * a.dim + i])
                                 : 0;
    for (int i = threadIdx.x; i < SIMT_HEADS * a.v_dim; i += SIMT_THREADS) o[i] = 0;
    for (int key = 0; key < keys; key += SIMT_KEYS) {
        int count = min(SIMT_KEYS, keys - key);
        __syncthreads();
        if (threadIdx.x < count) cells[threadIdx.x] = attention_cell(a.pages, b, key + threadIdx.x);
        __syncthreads();
        for (int j = warp; j < count; j += SIMT_WARPS) {
            const C *k = (const C *)a.k.data + cells[j] * a.k.token_stride;
            float    sums[SIMT_HEADS] = {};
            for (int i = lane; i < a.dim; i += 32) {
                float x = to_float(k[i]);
#pragma unroll
                for (int h = 0; h < SIMT_HEADS; h++) sums[h] += q[h * a.dim + i] * x;
            }
#pragma unroll
            for (int h = 0; h < SIMT_HEADS; h++) {
                float sum = warp_sum(sums[h]);
                if (lane == 0) s[h * SIMT_KEYS + j] = sum * a.scale;
            }
        }
        __syncthreads();
        if (warp < SIMT_HEADS) {
            float x[2], top = most, sum = 0;
            for (int i = 0; i < 2; i++) {
                x[i] = lane + i * 32 < count ? s[warp * SIMT_KEYS + lane + i * 32] : -INFINITY;
                top = fmaxf(top, x[i]);
            }
            top = warp_max(top);
            float base = top == -INFINITY ? 0 : top;
            for (int i = 0; i < 2; i++) {
                x[i] = expf(x[i] - base), sum += x[i];
                s[warp * SIMT_KEYS + lane + i * 32] = x[i];
            }
            if (lane == 0) factor[warp] = expf(most - base);
            total = total * expf(most - base) + warp_sum(sum);
            most = top;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < a.v_dim; i += SIMT_THREADS) {
            float sums[SIMT_HEADS];
            for (int h = 0; h < SIMT_HEADS; h++) sums[h] = o[h * a.v_dim + i] * factor[h];
            for (int j = 0; j < count; j++) {
                float x = to_float(((const C *)a.k.data)[cells[j] * a.k.token_stride + i]);
#pragma unroll
                for (int h = 0; h < SIMT_HEADS; h++) sums[h] += s[h * SIMT_KEYS + j] * x;
            }
            for (int h = 0; h < SIMT_HEADS; h++) o[h * a.v_dim + i] = sums[h];
        }
    }
    if (warp < SIMT_HEADS && lane == 0) factor[warp] = 1 / total; /* no keys: NaN */
    __syncthreads();
    for (int i = threadIdx.x; i < heads * a.v_dim; i += SIMT_THREADS)
        ((T *)a.o.data)[b * a.o.batch_stride + t * a.o.token_stride + (int64_t)head * a.v_dim + i] =
            from_float<T>(o[i] * factor[i / a.v_dim]);
}

template <typename T, typename C> static Status simt_launch(const AttentionDims *a, cudaStream_t stream)
{
    int bytes = simt_shared_bytes(a->dim, a->v_dim);
    CUDA_TRY(cudaFuncSetAttribute(latent_simt<T, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    latent_simt<T, C><<<dim3((unsigned)cuda_div_up(a->num_heads, SIMT_HEADS), a->len, a->batch), SIMT_THREADS, bytes, stream>>>(*a);
    return CUDA_LAUNCHED();
}

/* ---- launches ---- */

template <int D, int V, int ROWS, typename T, typename C>
static Status launch_tiles(const AttentionDims *a, const LatentJob *d, int64_t tiles, cudaStream_t stream)
{
    typedef LatentTile<D, V, ROWS> Tile;
    int64_t                        units = (int64_t)a->batch * d->passes, most = units * tiles, shared = units + LATENT_BLOCKS;
    dim3 grid((unsigned)(d->shares ? (shared < most ? shared : most) : d->passes), d->shares ? 1 : (unsigned)a->batch);
    CUDA_TRY(cudaFuncSetAttribute(latent_tiles<D, V, ROWS, T, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::BYTES));
    return cuda_launch_early(d->early, latent_tiles<D, V, ROWS, T, C>, grid, LATENT_THREADS, Tile::BYTES, stream, *a, *d);
}

/* The head dims that mma_match accepts: those of DeepSeek-V2 and its successors. */
enum { MMA_DIM = 576, MMA_VALUE_DIM = 512 };

template <typename T, typename C> static Status launch_mma(const AttentionDims *a, LatentJob *d, void *workspace, cudaStream_t stream)
{
    int64_t tiles = attention_pages_tiles(0, (int64_t)a->pages.row_pages * a->pages.page_len);
    int64_t rows = d->shares ? latent_block_heads(a->num_heads) : (int64_t)a->len * a->num_heads <= 16 ? 16 : 32;
    d->passes = (int)cuda_div_up((int64_t)a->len * a->num_heads, rows);
    d->totals = (float2 *)workspace;
    d->sums = (float *)(d->totals + latent_slots(a->batch, a->num_heads, tiles) * a->num_heads);
    if (rows == 16)
        TRY((launch_tiles<MMA_DIM, MMA_VALUE_DIM, 16, T, C>(a, d, tiles, stream)));
    else
        TRY((launch_tiles<MMA_DIM, MMA_VALUE_DIM, 32, T, C>(a, d, tiles, stream)));
    if (!d->shares) return OK;
    return cuda_launch_early(d->early, latent_combine<T>, dim3((unsigned)a->num_heads, (unsigned)a->batch), MMA_VALUE_DIM / 2, 0, stream,
                             *a, *d);
}

/* Dims with the operands of the launch. */
static AttentionDims bound(const KernelArgs *args, LatentJob *out)
{
    const LatentAttrs *attrs = (const LatentAttrs *)args->attrs;
    const TensorView  *cache = &args->out[1], *pages = &args->in[LATENT_PAGES];
    AttentionAttrs     all = {};
    all.num_heads = attrs->num_heads, all.num_kv_heads = 1, all.head_dim = attrs->head_dim, all.scale = attrs->scale;
    AttentionDims a = attention_dims(&all, &args->in[LATENT_Q].type, NULL);
    a.v_dim = (int)attrs->value_dim;
    a.cached = cache->type.dtype;
    a.q = heads_of(&args->in[LATENT_Q]), a.k = a.v = heads_of(cache), a.o = heads_of(&args->out[0]);
    a.pages.starts = (const int32_t *)args->in[LATENT_STARTS].data;
    a.pages.table = (const int32_t *)pages->data;
    a.pages.row_pages = (int)pages->type.dim[1];
    a.pages.num_pages = (int)cache->type.dim[0], a.pages.page_len = (int)cache->type.dim[1];
    *out = {};
    out->k = heads_of(&args->in[LATENT_K]);
    out->shares = a.len == 1;
    out->early = args->early && (args->constant >> LATENT_STARTS & args->constant >> LATENT_PAGES & 1);
    return a;
}

static bool mma_match(const Node *node, CudaDevice *device)
{
    const LatentAttrs *attrs = (const LatentAttrs *)node->attrs;
    return attrs->head_dim == MMA_DIM && attrs->value_dim == MMA_VALUE_DIM && attrs->scale >= 0 &&
           cuda_shared_bytes(device) >= (size_t)LatentTile<MMA_DIM, MMA_VALUE_DIM, 16>::BYTES &&
           cuda_shared_bytes(device) >= (size_t)LatentTile<MMA_DIM, MMA_VALUE_DIM, 32>::BYTES;
}

static bool simt_match(const Node *node, CudaDevice *device)
{
    const LatentAttrs *attrs = (const LatentAttrs *)node->attrs;
    return simt_shared_bytes(attrs->head_dim, attrs->value_dim) <= (int64_t)cuda_shared_bytes(device);
}

static Status mma_run(const KernelArgs *args)
{
    LatentJob     d;
    AttentionDims a = bound(args, &d);
    cudaStream_t  stream = cuda_stream(args);
    if (!a.batch || !a.len) return OK;
    if (!d.shares || !a.o.data) TRY(attention_append_keys(&a, &d.k, stream));
    if (!a.o.data) return OK;
    if (!d.shares) d.early = false;
    bool coded = a.cached == DT_E4M3;
    if (a.dtype == DT_F16)
        return coded ? launch_mma<__half, e4m3>(&a, &d, args->workspace, stream)
                     : launch_mma<__half, __half>(&a, &d, args->workspace, stream);
    return coded ? launch_mma<bf16, e4m3>(&a, &d, args->workspace, stream) : launch_mma<bf16, bf16>(&a, &d, args->workspace, stream);
}

static Status simt_run(const KernelArgs *args)
{
    LatentJob     d;
    AttentionDims a = bound(args, &d);
    cudaStream_t  stream = cuda_stream(args);
    if (!a.batch || !a.len) return OK;
    TRY(attention_append_keys(&a, &d.k, stream));
    if (!a.o.data) return OK;
    Status status = OK;
    if (a.cached == DT_E4M3)
        CUDA_FLOAT_ANY(a.dtype, T, status = simt_launch<T, e4m3>(&a, stream));
    else
        CUDA_FLOAT_ANY(a.dtype, T, status = simt_launch<T, T>(&a, stream));
    return status;
}

#define CACHE(dtype) \
    { \
        { \
            1u << LATENT_KC, 1u << 1, DT_SET(dtype) | DT_SET(DT_E4M3) \
        } \
    }

CUDA_KERNELS(attention_latent,
             {.dtypes = DT_SET_BF16,
              .min_sm = 80,
              .run = mma_run,
              .name = "mma",
              .workspace = cuda_planned_workspace,
              .match = mma_match,
              .except = CACHE(DT_BF16)},
             {.dtypes = DT_SET(DT_F16),
              .min_sm = 80,
              .run = mma_run,
              .name = "mma",
              .workspace = cuda_planned_workspace,
              .match = mma_match,
              .except = CACHE(DT_F16)},
             {.dtypes = DT_SET_BF16, .run = simt_run, .name = "simt", .match = simt_match, .except = CACHE(DT_BF16)},
             {.dtypes = DT_SET(DT_F16), .run = simt_run, .name = "simt", .match = simt_match, .except = CACHE(DT_F16)},
             {.dtypes = DT_SET_F32, .run = simt_run, .name = "simt", .match = simt_match, .except = CACHE(DT_F32)})
